"""Spans of one trace through all tiers, as their code uses them. Off until a backend is put in (`fairbox.otel`).

trajectory -> turn -> generate | tool call -> acquire -> limiter queue; execute -> executor: queue, set-up, run, collect

A trace belongs to a trajectory, and its id is the trajectory's. Whether a trajectory is traced is decided by its id,
alike in every process; what it calls follows. A span that would belong to nothing is not made, but for calls that come
in from clients that trace nothing themselves.
Invariants: while tracing is off, `span()` is a look at a variable and nothing is imported; spans hold ids, names,
counts, times and outcomes, and never code, output or tokens; nothing here waits or raises.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

__all__ = [
    "CURRENT",
    "Backend",
    "Parent",
    "Span",
    "TracingStatistics",
    "Value",
    "call_span",
    "carried",
    "current_ids",
    "enabled",
    "install",
    "parent_of",
    "parse",
    "record",
    "sampled",
    "span",
    "statistics",
    "trace_ids",
    "traceparent",
    "trajectory_span",
    "under",
]

Value = str | bool | int | float
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRAJECTORY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Parent:
    """What a span hangs on: a span of this process or of another one."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    traced: bool
    """False: its trajectory is not among those that are traced, and nothing below it is."""

    @property
    def traceparent(self) -> str:
        """As W3C trace context writes it."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.traced else '00'}"


@dataclass(frozen=True, slots=True)
class TracingStatistics:
    """What became of spans since the start."""

    exported: int
    """Taken by the collector."""
    failed: int
    """Handed to the collector in vain: it is gone, refuses or is too slow."""
    dropped: int
    """Never sent, because too many waited already."""
    waiting: int


class Span(Protocol):
    """`with span("name", tool="bash") as s: s.set(outcome="ok")`; or without a block, until `end()`."""

    @property
    def parent(self) -> Parent | None:
        """What spans below it hang on; None for one that is nothing."""
        ...

    def set(self, **attributes: Value) -> None:
        """Adds facts."""
        ...

    def fail(self, why: str) -> None:
        """Marks it as failed, by the service and not by the model."""
        ...

    def end(self) -> None:
        """It is over. The end of its block does this too."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """What makes spans."""

    def span(self, name: str, parent: Parent, attributes: dict[str, Value]) -> Span:
        """A span of now, which is the current one within its block."""
        ...

    def root(self, name: str, trajectory_id: str, attributes: dict[str, Value]) -> Span:
        """The first span of a trajectory's trace, or of a trace with an id of its own where it is empty."""
        ...

    def record(
        self, name: str, parent: Parent, seconds: float, ended_at: float | None, facts: Mapping[str, Value], why: str
    ) -> Parent:
        """A span that has ended."""
        ...

    @property
    def ratio(self) -> float:
        """Share that is traced, from 0 to 1."""
        ...

    def statistics(self) -> TracingStatistics: ...


class _Nothing:
    """The span of whatever is not traced."""

    __slots__ = ()

    @property
    def parent(self) -> Parent | None:
        return None

    def end(self) -> None:
        return

    def set(self, **attributes: Value) -> None:
        return

    def fail(self, why: str) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


_NOTHING = _Nothing()
_backend: Backend | None = None
CURRENT: ContextVar[Parent | None] = ContextVar("current span", default=None)
"""Set by the blocks of spans, and by nobody else."""


def install(backend: Backend | None) -> None:
    """Turns tracing on for this process; None turns it off."""
    global _backend
    _backend = backend


def enabled() -> bool:
    """Whether tracing is on."""
    return _backend is not None


def statistics() -> TracingStatistics | None:
    """None: tracing is off."""
    return None if _backend is None else _backend.statistics()


def span(name: str, /, **attributes: Value) -> Span:
    """A span below the current one; nothing where there is none."""
    if _backend is None:
        return _NOTHING
    parent = CURRENT.get()
    return _NOTHING if parent is None or not parent.traced else _backend.span(name, parent, attributes)


def trajectory_span(name: str, trajectory_id: str, /, **attributes: Value) -> Span:
    """The first span of a trajectory, or `_Untraced`, which keeps everything below it from being traced."""
    if _backend is None:
        return _NOTHING
    if not sampled(trajectory_id, _backend.ratio):
        return _Untraced(Parent(*trace_ids(trajectory_id), traced=False))
    return _backend.root(name, trajectory_id, {"trajectory_id": trajectory_id, **attributes})


def parent_of(trajectory_id: str) -> Parent | None:
    """What goes on for a trajectory after it has ended, such as its scoring, hangs on this; None: tracing is off."""
    if _backend is None:
        return None
    return Parent(*trace_ids(trajectory_id), traced=sampled(trajectory_id, _backend.ratio))


def call_span(name: str, traceparent: str, call_id: str, /, **attributes: Value) -> Span:
    """The span of a call that came in. Without a `traceparent` it begins a trace of its own, of which the same share is
    traced as of trajectories; `call_id` decides which."""
    if _backend is None:
        return _NOTHING
    parent = parse(traceparent)
    if parent is None:
        if sampled(call_id, _backend.ratio):
            return _backend.root(name, "", attributes)
        return _Untraced(Parent("0" * 31 + "1", "0" * 15 + "1", traced=False))
    return _backend.span(name, parent, attributes) if parent.traced else _Untraced(parent)


def under(parent: Parent | None, name: str, /, **attributes: Value) -> Span:
    """A span below `parent`, whatever the current one is; nothing below None."""
    if _backend is None or parent is None:
        return _NOTHING
    return _backend.span(name, parent, attributes) if parent.traced else _Untraced(parent)


def record(
    name: str,
    facts: Mapping[str, Value] | None = None,
    /,
    *,
    seconds: float,
    ended_at: float | None = None,
    parent: Parent | None = None,
    why: str = "",
) -> Parent | None:
    """A span that took so many seconds and ended at `ended_at` (seconds since 1970; None: now), below `parent` or the
    current span. What others can be recorded below; None where nothing was recorded. With `why` it has failed."""
    if _backend is None:
        return None
    parent = parent or CURRENT.get()
    if parent is None or not parent.traced:
        return None
    return _backend.record(name, parent, seconds, ended_at, facts or {}, why)


def carried() -> tuple[tuple[str, str], ...]:
    """Metadata of a gRPC call, or headers of HTTP, that carry the current span to another process."""
    if _backend is None:
        return ()
    parent = CURRENT.get()
    return () if parent is None else (("traceparent", parent.traceparent),)


def traceparent() -> str:
    """The current span as W3C trace context; empty where it is not traced."""
    parent = None if _backend is None else CURRENT.get()
    return parent.traceparent if parent is not None and parent.traced else ""


def current_ids() -> tuple[str, str] | None:
    """Trace and span, for the log; None where nothing is traced."""
    if _backend is None:
        return None
    parent = CURRENT.get()
    return None if parent is None or not parent.traced else (parent.trace_id, parent.span_id)


def parse(traceparent: str) -> Parent | None:
    """W3C trace context; None for what is none, so that a caller's mistake costs only its trace."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is None or not int(found[1], 16) or not int(found[2], 16) or traceparent.startswith("ff"):
        return None
    return Parent(found[1], found[2], traced=bool(int(found[3], 16) & 1))


def sampled(key: str, ratio: float) -> bool:
    """Whether what has this id is among the `ratio` that is traced: the same answer in every process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]) < ratio * 2**56


class _Untraced(_Nothing):
    """Of a trajectory or call that is not traced: says so to what it calls."""

    __slots__ = ("_before", "_parent")

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._before: Parent | None = None

    @property
    def parent(self) -> Parent:
        return self._parent

    def __enter__(self) -> Self:
        self._before = CURRENT.get()
        CURRENT.set(self._parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CURRENT.set(self._before)


def trace_ids(trajectory_id: str) -> tuple[str, str]:
    """Trace and first span of a trajectory: its own id where that has the form of one, else made of it."""
    if not _TRAJECTORY.fullmatch(trajectory_id) or not int(trajectory_id[:16], 16):
        trajectory_id = hashlib.sha256(trajectory_id.encode()).hexdigest()[:32]
    return trajectory_id, trajectory_id[:16]
