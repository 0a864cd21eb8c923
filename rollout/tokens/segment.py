"""A stretch of a trajectory's tokens that came from one place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Segment", "SegmentKind"]


class SegmentKind(StrEnum):
    """Where tokens came from."""

    PROMPT = "prompt"
    """Given before the first turn: system, examples, question. Never trained on."""
    SAMPLED = "sampled"
    """Chosen by the engine, the stop token included. The only tokens trained on."""
    TOOL = "tool"
    """Between two turns: what the chat template puts there, with the tools' answers. Never trained on."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`ids`, and for sampled ones the engine's logprobs (float32 values, natural logarithm) and weight version."""

    kind: SegmentKind
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    weight_version: str | None = None

    def __post_init__(self) -> None:
        if self.kind is SegmentKind.SAMPLED:
            assert self.logprobs is not None
            assert self.weight_version is not None
            assert len(self.logprobs) == len(self.ids)
        else:
            assert self.logprobs is None
            assert self.weight_version is None
