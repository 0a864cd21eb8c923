"""A stretch of a trajectory's tokens that came from one place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fairbox.errors import FairboxError


class SegmentError(FairboxError):
    """Tokens, logprobs and weight versions contradict each other. The text says which do and how."""


class SegmentKind(StrEnum):
    """Origins of tokens."""

    PROMPT = "prompt"
    """Given before the first turn: system, examples, question. Never trained on."""
    SAMPLED = "sampled"
    """Chosen by the engine, the stop token included. The only tokens trained on."""
    TOOL = "tool"
    """Between two turns: what the chat template puts there, with the tools' answers. Never trained on."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`ids`, and for sampled ones the engine's logprobs (float32 values, natural logarithm) and weight version.

    Raises SegmentError when they don't fit each other.
    """

    kind: SegmentKind
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    weight_version: str | None = None

    def __post_init__(self) -> None:
        sampled = self.kind is SegmentKind.SAMPLED
        for name, value in (("logprobs", self.logprobs), ("weight_version", self.weight_version)):
            if (value is not None) is not sampled:
                must = "must have" if sampled else "must not have"
                raise SegmentError(f"a segment of kind {self.kind} {must} {name}")
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise SegmentError(f"a sampled segment has {len(self.ids)} ids and {len(self.logprobs)} logprobs")
