"""Live figures of a tool's calls, for Prometheus and for people.

The toolbox counts each call and takes it for running; a tool whose calls wait reports that with `set_phase`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class CallPhase(StrEnum):
    """Phases of a call."""

    WORKER = "worker"
    """Waiting for a worker of this process."""
    LEASE = "lease"
    """Waiting for a lease of the limiter."""
    RUNNING = "running"
    """At the executor, its queue included, or in the tool's own code."""


@dataclass(frozen=True, slots=True)
class ToolStatistics:
    """The calls of one tool in this process, over all trajectories."""

    running: int = 0
    waiting_for_worker: int = 0
    waiting_for_lease: int = 0
    finished: int = 0
    """Calls that ended with a response."""
    failed: int = 0
    """Calls that ended without one: the service failed, or the trajectory was cancelled."""
    waiting_to_begin: int = 0
    """Trajectories that do not begin yet, because the tool's service fails."""


@dataclass(eq=False, slots=True)
class _Call:
    phase: CallPhase


_CALL: ContextVar[_Call | None] = ContextVar("call of a tool", default=None)


def set_phase(phase: CallPhase) -> None:
    """Says where the call is that the current task answers. Nothing where no toolbox has made it."""
    call = _CALL.get()
    if call is not None:
        call.phase = phase


class CallBoard:
    """Counts the calls of one tool: `with board.call(): ...` around each."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()
        self._finished = self._failed = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call that was answered unless the block raises."""
        call = _Call(CallPhase.RUNNING)
        self._calls.add(call)
        token = _CALL.set(call)
        try:
            yield
        except BaseException:
            self._failed += 1
            raise
        else:
            self._finished += 1
        finally:
            _CALL.reset(token)
            self._calls.discard(call)

    def statistics(self, *, waiting_to_begin: int = 0) -> ToolStatistics:
        """As it is now."""
        phases = [call.phase for call in self._calls]
        return ToolStatistics(
            running=phases.count(CallPhase.RUNNING),
            waiting_for_worker=phases.count(CallPhase.WORKER),
            waiting_for_lease=phases.count(CallPhase.LEASE),
            finished=self._finished,
            failed=self._failed,
            waiting_to_begin=waiting_to_begin,
        )
