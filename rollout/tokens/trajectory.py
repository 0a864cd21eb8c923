"""The exact tokens of one rollout: an append-only list of segments.

Invariants: the ids given to the engine are the concatenation of the segments, ids that the engine returned are never
decoded and encoded again, `response_mask` is 1 exactly on sampled ids, and `response_ids`, `response_mask` and
`logprobs` have one length. It knows no text.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import chain

from rollout.engines.base import GenerationResult
from rollout.tokens.segment import Segment, SegmentError, SegmentKind


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A rollout's tokens. The first segment is the prompt, and no other is. Raises SegmentError."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        prompts = [n for n, segment in enumerate(self.segments) if segment.kind is SegmentKind.PROMPT]
        if prompts != [0]:
            raise SegmentError(f"a trajectory begins with its only prompt, but its prompts are the segments {prompts}")

    @property
    def ids(self) -> tuple[int, ...]:
        """Everything: prompt, then response."""
        return tuple(chain.from_iterable(segment.ids for segment in self.segments))

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.segments[0].ids

    @property
    def response_ids(self) -> tuple[int, ...]:
        """Everything after the prompt: sampled and tool ids."""
        return tuple(chain.from_iterable(segment.ids for segment in self.segments[1:]))

    @property
    def response_mask(self) -> tuple[int, ...]:
        """1 on sampled ids, 0 on tool ids; one per response id."""
        return tuple(chain.from_iterable(_mask(segment) for segment in self.segments[1:]))

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The engine's logprobs on sampled ids, 0.0 on tool ids; one per response id."""
        return tuple(
            chain.from_iterable(segment.logprobs or (0.0,) * len(segment.ids) for segment in self.segments[1:])
        )

    @property
    def turns(self) -> list[range]:
        """Range of each turn in `ids`. Several segments, of different weights, may be one turn; a turn without any id
        leaves no trace in the tokens and is not found."""
        turns: list[range] = []
        position, inside = 0, False
        for segment in self.segments:
            end = position + len(segment.ids)
            sampled = segment.kind is SegmentKind.SAMPLED
            if sampled:
                turns.append(range(turns.pop().start if inside else position, end))
            inside, position = sampled, end
        return turns


class TokenBuilder:
    """Collects the segments of a rollout while it runs."""

    def __init__(self, prompt_ids: tuple[int, ...]) -> None:
        self._segments = [Segment(SegmentKind.PROMPT, prompt_ids)]
        self._length = len(prompt_ids)
        self._prompt_length = len(prompt_ids)

    def __len__(self) -> int:
        """Ids so far, the prompt included."""
        return self._length

    @property
    def response_length(self) -> int:
        """Ids so far after the prompt."""
        return self._length - self._prompt_length

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids that the engine gets next."""
        return tuple(chain.from_iterable(segment.ids for segment in self._segments))

    def add_sampled(self, result: GenerationResult) -> None:
        """Appends a turn, one segment per weight version. A turn without ids adds nothing.

        Raises SegmentError, and adds nothing, when the engine's ids, logprobs and versions don't fit each other.
        """
        count, edges = len(result.ids), [0]
        for span in result.versions:
            if span.start != edges[-1] or not span.start <= span.end <= count:
                raise SegmentError(
                    f"the engine's weight version {span.version!r} is of the ids {span.start} to {span.end}, "
                    f"must begin at {edges[-1]} and end at {count} at most"
                )
            edges.append(span.end)
        if edges[-1] != count or len(result.logprobs) != count:
            raise SegmentError(
                f"the engine gave {count} ids, {len(result.logprobs)} logprobs and weight versions of {edges[-1]} ids"
            )
        for span in result.versions:
            part = slice(span.start, span.end)
            self._add(Segment(SegmentKind.SAMPLED, result.ids[part], result.logprobs[part], span.version))

    def add_tool(self, ids: tuple[int, ...]) -> None:
        """Appends what stands between two turns; see `ChatTemplate.between_turns`. Raises SegmentError."""
        if self._segments[-1].kind is not SegmentKind.SAMPLED:
            raise SegmentError(f"a tool's answer must follow a sampled turn, but follows a {self._segments[-1].kind}")
        self._add(Segment(SegmentKind.TOOL, ids))

    def fork(self) -> TokenBuilder:
        """Another builder with the same segments; the two grow on their own from here."""
        fork = copy.copy(self)
        fork._segments = list(self._segments)
        return fork

    def build(self) -> Trajectory:
        """The trajectory so far."""
        return Trajectory(tuple(self._segments))

    def _add(self, segment: Segment) -> None:
        if segment.ids:
            self._segments.append(segment)
            self._length += len(segment.ids)


def _mask(segment: Segment) -> tuple[int, ...]:
    return (int(segment.kind is SegmentKind.SAMPLED),) * len(segment.ids)
