"""Makes the spans of `fairbox.tracing` with OpenTelemetry's SDK and sends them to a collector, OTLP over HTTP.

Needs the extra `otel`; imported only when traces are asked for. Invariants: at most `MAX_WAITING` spans wait, what is
beyond is dropped and counted; whatever the collector does, making a span never waits, and closing takes at most
`LAST_SPANS_S`; a collector that fails is told of once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from fairbox.tracing import CURRENT, Parent, TracingStatistics, Value, trace_ids

__all__ = ["LAST_SPANS_S", "MAX_WAITING", "OtelTracing"]

_LOG = logging.getLogger("fairbox.tracing")
MAX_WAITING = 8_192
"""Spans that wait to be sent: a few seconds of a busy server, some 10 MB."""
LAST_SPANS_S = 3.0
"""What the spans that wait at the end of a program have to reach the collector."""
_EVERY_S = 2.0
"""Between two requests to the collector, unless many spans wait."""
_TIMEOUT_S = 5.0
"""Of one request, repetitions included: what waits longer is in the way of newer spans."""
_LONGEST = 256
"""Characters of an attribute."""
_COMPLAIN_EVERY_S = 60.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtelTracing:
    """The `fairbox.tracing.Backend`. `endpoint` empty: where OTEL_EXPORTER_OTLP_* says. `close()` it."""

    def __init__(self, endpoint: str, *, service: str, instance: str, version: str, ratio: float) -> None:
        # The SDK tells of each failure in words of its own, for every batch.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._ratio = ratio
        self._ids = _Ids()
        self._counter = _Counter(OTLPSpanExporter(endpoint=endpoint or None, timeout=_TIMEOUT_S))
        batches = BatchSpanProcessor(
            self._counter,
            max_queue_size=2 * MAX_WAITING,  # the bound is ours, which counts
            schedule_delay_millis=int(_EVERY_S * 1000),
            max_export_batch_size=512,
        )
        self._entrance = _Entrance(batches, self._counter)
        resource = Resource.create(
            {"service.name": service, "service.instance.id": instance, "service.version": version}
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(self._entrance)
        self._tracer = self._provider.get_tracer("fairbox", version)

    @property
    def ratio(self) -> float:
        return self._ratio

    def statistics(self) -> TracingStatistics:
        counter = self._counter
        waiting = self._entrance.entered - counter.taken
        return TracingStatistics(counter.exported, counter.failed, self._entrance.dropped, waiting)

    def span(self, name: str, parent: Parent, attributes: dict[str, Value]) -> _Block:
        kind = SpanKind.SERVER if name.startswith("rpc ") else SpanKind.INTERNAL
        made = self._tracer.start_span(name.removeprefix("rpc "), _context(parent), kind, _named(attributes))
        return _Block(made)

    def root(self, name: str, trajectory_id: str, attributes: dict[str, Value]) -> _Block:
        if trajectory_id:
            self._ids.next(*trace_ids(trajectory_id))
        kind = SpanKind.SERVER if name.startswith("rpc ") else SpanKind.INTERNAL
        return _Block(self._tracer.start_span(name.removeprefix("rpc "), Context(), kind, _named(attributes)))

    def record(
        self, name: str, parent: Parent, seconds: float, ended_at: float | None, facts: Mapping[str, Value], why: str
    ) -> Parent:
        end = time.time_ns() if ended_at is None else int(ended_at * 1e9)
        start = end - int(max(0.0, seconds) * 1e9)
        made = self._tracer.start_span(name, _context(parent), SpanKind.INTERNAL, _named(facts), start_time=start)
        if why:
            made.set_status(Status(StatusCode.ERROR, why[:_LONGEST]))
        made.end(end)
        return _parent(made)

    async def close(self, within_s: float = LAST_SPANS_S) -> None:
        """Sends what waits, within that time; what is left then is lost, and counted. Idempotent."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def last() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # nobody waits any more
                return

        # A thread of its own that nobody joins: those of the loop are waited for at the end of the program.
        threading.Thread(target=last, name="last spans", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), within_s)
        except TimeoutError:
            _LOG.warning("%d spans did not reach the collector within %g s", self.statistics().waiting, within_s)


class _Block:
    """One span, current within its block."""

    __slots__ = ("_before", "_span")

    def __init__(self, made: OtelSpan) -> None:
        self._span = made
        self._before: Parent | None = None

    @property
    def parent(self) -> Parent:
        return _parent(self._span)

    def end(self) -> None:
        self._span.end()

    def set(self, **attributes: Value) -> None:
        self._span.set_attributes(_named(attributes))

    def fail(self, why: str) -> None:
        self._span.set_status(Status(StatusCode.ERROR, why[:_LONGEST]))

    def __enter__(self) -> Self:
        self._before = CURRENT.get()
        CURRENT.set(_parent(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.set(self._before)
        if error is not None and kind is not None:
            self.fail(kind.__name__)
        self._span.end()


class _Ids(RandomIdGenerator):
    """Random ids, but for spans whose ids were chosen by `next()` right before, in the same thread."""

    def __init__(self) -> None:
        self._chosen = threading.local()

    def next(self, trace_id: str, span_id: str) -> None:
        self._chosen.ids = [int(trace_id, 16), int(span_id, 16)]

    def generate_trace_id(self) -> int:
        ids = getattr(self._chosen, "ids", None)
        return ids.pop(0) if ids and len(ids) == 2 else super().generate_trace_id()

    def generate_span_id(self) -> int:
        ids = getattr(self._chosen, "ids", None)
        return ids.pop() if ids else super().generate_span_id()


class _Counter(SpanExporter):
    """Counts what becomes of spans on their way out."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._complained = float("-inf")
        self.taken = self.exported = self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
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

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class _Entrance(SpanProcessor):
    """Lets spans in as long as there is room."""

    def __init__(self, batches: BatchSpanProcessor, counter: _Counter) -> None:
        self._batches = batches
        self._counter = counter
        self.entered = self.dropped = 0

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """Nothing: spans count when they have ended."""

    def on_end(self, span: ReadableSpan) -> None:
        if self.entered - self._counter.taken >= MAX_WAITING:
            self.dropped += 1
            return
        self.entered += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _context(parent: Parent) -> Context:
    remote = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=_SAMPLED)
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _parent(made: OtelSpan) -> Parent:
    context = made.get_span_context()
    return Parent(f"{context.trace_id:032x}", f"{context.span_id:016x}", traced=True)


def _named(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """With the project's prefix, long texts cut, empty ones left out."""
    return {
        f"fairbox.{name}": value[:_LONGEST] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value != "" or not isinstance(value, str)
    }
