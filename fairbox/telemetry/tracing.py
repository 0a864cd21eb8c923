"""Spans of one trace through all tiers, made with OpenTelemetry's API. Off until `install()` is given a tracer.

trajectory -> turn -> generate | tool call -> acquire -> limiter queue; execute -> executor: queue, set-up, run, collect

A trace belongs to a trajectory, and its id is the trajectory's. A span that would belong to nothing is not made, except
for calls that come in from clients that trace nothing themselves.
Invariants: while tracing is off, `span()` looks at a variable; spans hold ids, names, counts, times and outcomes, and
never code, output, tokens or the texts of exceptions; nothing here waits or raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Value = str | bool | int | float
_TRAJECTORY = re.compile(r"[0-9a-f]{32}")
_W3C = TraceContextTextMapPropagator()
_NOTHING: AbstractContextManager[Span] = contextlib.nullcontext(INVALID_SPAN)
TRAJECTORY_ID: ContextVar[str] = ContextVar("trajectory whose first span is being made", default="")
"""Source of the ids of the span that is being made; empty: they are random."""


@dataclass(frozen=True, slots=True)
class TracingStatistics:
    """Counts of spans since the start, by what became of them."""

    exported: int
    """Taken by the collector."""
    failed: int
    """Handed to the collector in vain: it is gone, refuses or is too slow."""
    dropped: int
    """Never sent, because too many waited already."""
    waiting: int


_tracer: Tracer | None = None
_statistics: Callable[[], TracingStatistics] | None = None


def install(tracer: Tracer | None, statistics: Callable[[], TracingStatistics] | None = None) -> None:
    """Turns tracing on for this process; None turns it off."""
    global _tracer, _statistics
    _tracer, _statistics = tracer, statistics


def enabled() -> bool:
    """Says whether tracing is on."""
    return _tracer is not None


def statistics() -> TracingStatistics | None:
    """None: tracing is off."""
    return None if _statistics is None else _statistics()


def named(facts: Mapping[str, Value]) -> dict[str, Value]:
    """Attributes of a span: with the project's prefix, empty texts left out."""
    return {f"fairbox.{name}": value for name, value in facts.items() if value != ""}


def span(name: str, parent: Span | None = None, /, **facts: Value) -> AbstractContextManager[Span]:
    """A span below `parent`, or else below the current one; it is the current one within its block. Nothing where there
    is no parent."""
    if _tracer is None:
        return _NOTHING
    parent = parent or get_current_span()
    if not parent.get_span_context().is_valid:
        return _NOTHING
    return _within(_tracer.start_span(name, set_span_in_context(parent), attributes=named(facts)))


def call_span(name: str, traceparent: str, trajectory_id: str = "") -> AbstractContextManager[Span]:
    """The span of a call that came in. Without a `traceparent` it belongs to the trajectory, if there is one, or else
    begins a trace of its own."""
    if _tracer is None:
        return _NOTHING
    parent = parse(traceparent)
    if trajectory_id and not parent.get_span_context().is_valid:
        parent = trajectory_span(trajectory_id)
    context, facts = set_span_in_context(parent, Context()), named({"trajectory_id": trajectory_id})
    return _within(_tracer.start_span(name, context, SpanKind.SERVER, facts))


def trajectory_span(trajectory_id: str, /, **facts: Value) -> Span:
    """The first span of a trajectory, for its caller to end. One that is not ended is not sent, and can be the parent
    of what goes on after the trajectory, such as its scoring: its ids are the same each time, in every process."""
    if _tracer is None:
        return INVALID_SPAN
    token = TRAJECTORY_ID.set(trajectory_id)
    try:
        attributes = named({"trajectory_id": trajectory_id, **facts})
        return _tracer.start_span("rollout.trajectory", Context(), attributes=attributes)
    finally:
        TRAJECTORY_ID.reset(token)


def record(
    name: str,
    facts: Mapping[str, Value] | None = None,
    /,
    *,
    seconds: float,
    ended_at: float | None = None,
    parent: Span | None = None,
    why: str = "",
) -> Span:
    """A span that took so many seconds and ended at `ended_at` (seconds since 1970; None: now), below `parent` or the
    current span. Others can be recorded below it. With `why` it has failed."""
    parent = parent or get_current_span()
    if _tracer is None or not parent.get_span_context().trace_flags.sampled:
        return INVALID_SPAN
    end = time.time_ns() if ended_at is None else int(ended_at * 1e9)
    start = end - int(max(0.0, seconds) * 1e9)
    made = _tracer.start_span(name, set_span_in_context(parent), attributes=named(facts or {}), start_time=start)
    if why:
        made.set_status(StatusCode.ERROR, why)
    made.end(end)
    return made


def carried() -> tuple[tuple[str, str], ...]:
    """Metadata of a gRPC call, or headers of HTTP, that carry the current span to another process."""
    if _tracer is None:
        return ()
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return tuple(headers.items())


def traceparent() -> str:
    """The current span as W3C trace context; empty where it is not traced."""
    return "" if current_ids() is None else dict(carried())["traceparent"]


def current_ids() -> tuple[str, str] | None:
    """Trace and span, for the log; None where nothing is traced."""
    if _tracer is None:
        return None
    context = get_current_span().get_span_context()
    if not context.trace_flags.sampled:
        return None
    return format_trace_id(context.trace_id), format_span_id(context.span_id)


def parse(traceparent: str) -> Span:
    """The span that W3C trace context names; an invalid one for what names none, so that a caller's mistake costs only
    its trace."""
    return get_current_span(_W3C.extract({"traceparent": traceparent}, Context()))


def trace_ids(trajectory_id: str) -> tuple[str, str]:
    """Trace and first span of a trajectory: its own id where that has the form of one, else made of it."""
    if not _TRAJECTORY.fullmatch(trajectory_id) or not int(trajectory_id[:16], 16):
        trajectory_id = hashlib.sha256(trajectory_id.encode()).hexdigest()[:32]
    return trajectory_id, trajectory_id[:16]


@contextlib.contextmanager
def _within(made: Span) -> Iterator[Span]:
    """Makes it the current span of the block, and ends it. OpenTelemetry's own way of noting an exception writes its
    text and its traceback down, and these can hold code."""
    with use_span(made, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield made
        except BaseException as error:
            made.set_status(StatusCode.ERROR, type(error).__name__)
            raise
