"""Sends the spans of `fairbox.telemetry.tracing` to a collector with OpenTelemetry's SDK, OTLP over HTTP.

Needs the extra `otel`; imported only when traces are asked for. Invariants: at most `MAX_WAITING` spans wait, what is
beyond is dropped and counted; whatever the collector does, making a span never waits, and closing takes at most
`LAST_SPANS_S`; a collector that fails is told of once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, SamplingResult, TraceIdRatioBased

from fairbox.telemetry import tracing
from fairbox.telemetry.tracing import TRAJECTORY_ID, TracingStatistics, trace_ids

_LOG = logging.getLogger("fairbox.tracing")
MAX_WAITING = 8_192
"""Spans that wait to be sent: a few seconds of a busy server, some 10 MB."""
LAST_SPANS_S = 3.0
"""Seconds for the spans that wait at the end of a program to reach the collector."""
_EVERY_S = 2.0
"""Between two requests to the collector, unless many spans wait."""
_TIMEOUT_S = 5.0
"""Seconds for one request, repetitions included: what waits longer is in the way of newer spans."""
_LONGEST = 256
"""Characters of an attribute."""
_COMPLAIN_EVERY_S = 60.0


def make_provider(ratio: float, resource: Resource | None = None) -> TracerProvider:
    """Makes spans whose traces are those of trajectories, and traces that share of them."""
    return TracerProvider(
        sampler=ParentBased(TrajectoryRatio(ratio)),
        resource=resource,
        id_generator=_TrajectoryIds(),
        span_limits=SpanLimits(max_span_attribute_length=_LONGEST),
        shutdown_on_exit=False,
    )


@contextlib.asynccontextmanager
async def exporting(endpoint: str, *, service: str, instance: str, version: str, ratio: float) -> AsyncIterator[None]:
    """Tracing is on within the block. `endpoint` empty: where OTEL_EXPORTER_OTLP_* says."""
    # The SDK tells of each failure in words of its own, for every batch.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    resource = Resource.create({"service.name": service, "service.instance.id": instance, "service.version": version})
    provider = make_provider(ratio, resource)
    waiting = _WaitingSpans(_CountingExporter(endpoint=endpoint or None, timeout=_TIMEOUT_S))
    provider.add_span_processor(waiting)
    tracing.install(provider.get_tracer("fairbox", version), waiting.statistics)
    try:
        yield
    finally:
        tracing.install(None)
        await _close(provider, waiting)


async def _close(provider: TracerProvider, waiting: _WaitingSpans) -> None:
    """Sends what waits, within `LAST_SPANS_S`; what is left then is lost, and counted."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def last() -> None:
        provider.shutdown()
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(done.set)

    # A thread of its own that nobody joins: those of the loop are waited for at the end of the program.
    threading.Thread(target=last, name="last spans", daemon=True).start()
    try:
        await asyncio.wait_for(done.wait(), LAST_SPANS_S)
    except TimeoutError:
        left = waiting.statistics().waiting
        _LOG.warning("%d spans did not reach the collector within %g s", left, LAST_SPANS_S)


class TrajectoryRatio(TraceIdRatioBased):
    """Goes by a hash of the trace's id. OpenTelemetry looks at its last 64 bits as a number, and those of an id made by
    uuid4, as trajectories have them, begin with 10 in each: of the ratio 0.4 it would trace nothing."""

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, *others: Any, **more: Any
    ) -> SamplingResult:
        """The same answer for the same id, in every process."""
        hashed = int.from_bytes(hashlib.sha256(trace_id.to_bytes(16)).digest()[:8])
        return super().should_sample(parent_context, hashed, name, *others, **more)


class _TrajectoryIds(RandomIdGenerator):
    """Random ids, but for the first span of a trajectory."""

    def generate_trace_id(self) -> int:
        trajectory_id = TRAJECTORY_ID.get()
        return int(trace_ids(trajectory_id)[0], 16) if trajectory_id else super().generate_trace_id()

    def generate_span_id(self) -> int:
        trajectory_id = TRAJECTORY_ID.get()
        return int(trace_ids(trajectory_id)[1], 16) if trajectory_id else super().generate_span_id()

    def is_trace_id_random(self) -> bool:
        return not TRAJECTORY_ID.get()


class _CountingExporter(OTLPSpanExporter):
    """Counts what becomes of spans on their way out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._complained = float("-inf")
        self.taken = self.exported = self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = super().export(spans)
        except Exception as error:  # the boundary: a collector that answers nonsense costs its spans
            _LOG.debug("spans could not be sent: %r", error)
        finally:
            self.taken += len(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            return result
        self.failed += len(spans)
        if time.monotonic() - self._complained > _COMPLAIN_EVERY_S:
            self._complained = time.monotonic()
            _LOG.warning("the collector of traces took no spans: %d are lost so far", self.failed)
        return result


class _WaitingSpans(BatchSpanProcessor):
    """Lets spans in as long as there is room, and counts the others, which OpenTelemetry's own bound does not."""

    def __init__(self, exporter: _CountingExporter) -> None:
        super().__init__(
            exporter,
            max_queue_size=2 * MAX_WAITING,  # the bound is ours
            schedule_delay_millis=int(_EVERY_S * 1000),
            max_export_batch_size=512,
        )
        self._exporter = exporter
        self._entered = self._dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._entered - self._exporter.taken >= MAX_WAITING:
            self._dropped += 1
            return
        self._entered += 1
        super().on_end(span)

    def statistics(self) -> TracingStatistics:
        """Counts of spans, by what became of them."""
        done = self._exporter
        return TracingStatistics(done.exported, done.failed, self._dropped, self._entered - done.taken)
