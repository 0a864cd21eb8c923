"""One turn that may be sampled in several parts, because weight updates interrupt it: a pure state machine.

Invariants: a part's context is the request's ids and then every id sampled so far, so no id is lost or sampled twice;
ids, logprobs and weight versions grow together; the parts together stay within `max_new_tokens` and `time_limit_s`, and
their waits within `queue_timeout_s`. It knows no engine and no clock: durations come with the parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rollout.engines.base import FinishReason, GenerationRequest, GenerationResult, VersionSpan


class Turn:
    """`next_request()` is what to ask for, `add()` takes the answer, until `finish` is set; then `result()`."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._ids: tuple[int, ...] = ()
        self._logprobs: tuple[float, ...] = ()
        self._versions: tuple[VersionSpan, ...] = ()
        self._queue_s = self._run_s = 0.0
        self._cached: int | None = None
        self.parts = 0
        """Number of parts so far."""
        self.finish: FinishReason | None = None
        """None while the turn goes on."""

    @property
    def sampled(self) -> int:
        """Ids so far."""
        return len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids sampled so far."""
        return self._ids

    @property
    def queue_left_s(self) -> float:
        """Seconds that it may still wait."""
        return max(0.0, self._request.queue_timeout_s - self._queue_s)

    def waited(self, seconds: float) -> None:
        """Counts a wait outside of the engine, as for an update to end."""
        self._queue_s += seconds

    def next_request(self) -> GenerationRequest:
        """The rest of the turn as a request. Not for a turn that has finished."""
        assert self.finish is None
        if not self.parts and not self._queue_s:
            return self._request
        request, limit = self._request, self._request.time_limit_s
        return replace(
            request,
            input_ids=(*request.input_ids, *self._ids),
            params=replace(request.params, max_new_tokens=request.params.max_new_tokens - len(self._ids)),
            queue_timeout_s=max(self.queue_left_s, 1e-3),
            time_limit_s=None if limit is None else limit - self._run_s,
        )

    def add(self, part: GenerationResult, *, interrupted: bool = False) -> None:
        """Appends what one call of an engine sampled and decides whether the turn goes on. `interrupted`: something
        else than the request's time limit cut it off, such as a weight update."""
        assert self.finish is None
        assert len(part.ids) == len(part.logprobs)
        start, params, limit = len(self._ids), self._request.params, self._request.time_limit_s
        assert start + len(part.ids) <= params.max_new_tokens
        self._ids += part.ids
        self._logprobs += part.logprobs
        shifted = (VersionSpan(span.version, start + span.start, start + span.end) for span in part.versions)
        self._versions = join_spans((*self._versions, *shifted))
        self._queue_s += part.queue_s
        self._run_s += part.run_s
        self._cached = part.cached_tokens if self._cached is None else self._cached
        self.parts += 1
        if part.ids and part.ids[-1] in params.stop_token_ids:
            self.finish = FinishReason.STOP
        elif len(self._ids) == params.max_new_tokens:
            self.finish = FinishReason.LENGTH
        elif (part.finish is FinishReason.ABORT and not interrupted) or (limit is not None and self._run_s >= limit):
            self.finish = FinishReason.ABORT

    def end_at(self, end: int) -> None:
        """Ends the turn after its first `end` ids, as at a stop; what was sampled behind them is dropped."""
        self._ids, self._logprobs = self._ids[:end], self._logprobs[:end]
        kept = (span for span in self._versions if span.start < end)
        self._versions = tuple(replace(span, end=min(span.end, end)) for span in kept)
        self.finish = FinishReason.STOP

    def result(self) -> GenerationResult:
        """The whole turn. `cached_tokens` is that of its first part: of the request's own context."""
        assert self.finish is not None
        return GenerationResult(
            ids=self._ids,
            logprobs=self._logprobs,
            finish=self.finish,
            versions=self._versions,
            queue_s=self._queue_s,
            run_s=self._run_s,
            cached_tokens=self._cached or 0,
        )


def join_spans(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """The same cover without empty spans, neighbours of one version joined."""
    joined: list[VersionSpan] = []
    for span in spans:
        if span.start == span.end:
            continue
        if joined and joined[-1].version == span.version:
            joined[-1] = VersionSpan(span.version, joined[-1].start, span.end)
        else:
            joined.append(span)
    return tuple(joined)
