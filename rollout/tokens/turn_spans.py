"""Where the turns of a trajectory lie in its ids. Pure.

A turn is a stretch of sampled ids that the prompt or tools' ids stand before; several segments of different weights
may be one turn. A turn without any id leaves no trace in the tokens and is not found.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout.tokens.segment import SegmentKind
from rollout.tokens.trajectory import Trajectory

__all__ = ["TurnSpan", "turn_spans"]


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """The ids `start` to before `end` of `Trajectory.ids`; what the engine was given is everything before `start`."""

    start: int
    end: int
    weight_versions: tuple[str, ...]
    """In order, each once for a stretch."""


def turn_spans(trajectory: Trajectory) -> tuple[TurnSpan, ...]:
    """One for each turn with ids, in order."""
    spans: list[TurnSpan] = []
    position = 0
    inside = False
    for segment in trajectory.segments:
        end = position + len(segment.ids)
        sampled = segment.kind is SegmentKind.SAMPLED
        if sampled and inside:
            last = spans.pop()
            spans.append(TurnSpan(last.start, end, (*last.weight_versions, segment.weight_version or "")))
        elif sampled:
            spans.append(TurnSpan(position, end, (segment.weight_version or "",)))
        inside, position = sampled, end
    return tuple(spans)
