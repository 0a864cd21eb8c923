"""The waits of one stream that are traced: each becomes the span `limiter.queue` below that of whoever waits.

Made only where traces are exported; a request that brings no trace context costs a look at its field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.trace import Span

from fairbox import tracing
from fairbox.clock import Clock
from limiter.v1 import limiter_pb2 as pb

__all__ = ["TracedWaits"]

_MOST = 100_000
"""Waits that are remembered: a queue of the usual bound. What is beyond is not traced."""


@dataclass(frozen=True, slots=True)
class _Wait:
    parent: Span
    began: float
    bucket: str
    tenant: str
    attempt: int


class TracedWaits:
    """Of one `PeerStream`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def begin(self, acquires: Iterable[pb.Acquire]) -> None:
        """Notes those that bring a trace context. One that waits already is not noted anew."""
        for acquire in acquires:
            if not acquire.traceparent or acquire.request_id in self._waits or len(self._waits) >= _MOST:
                continue
            parent = tracing.parse(acquire.traceparent)
            if parent.get_span_context().trace_flags.sampled:
                wait = _Wait(parent, self._clock.now(), acquire.bucket, acquire.tenant, acquire.attempt)
                self._waits[acquire.request_id] = wait

    def end(self, request_id: str, outcome: str) -> None:
        """A wait is over. Nothing happens for one that was not noted."""
        wait = self._waits.pop(request_id, None)
        if wait is not None:
            tracing.record(
                "limiter.queue",
                {
                    "request_id": request_id,
                    "attempt": wait.attempt,
                    "bucket": wait.bucket,
                    "tenant": wait.tenant,
                    "outcome": outcome,
                },
                seconds=self._clock.now() - wait.began,
                parent=wait.parent,
                why="" if outcome in ("granted", "cancelled") else outcome,
            )

    def close(self) -> None:
        """The stream has ended; whoever still waits asks again over the next one."""
        for request_id in list(self._waits):
            self.end(request_id, "disconnected")
