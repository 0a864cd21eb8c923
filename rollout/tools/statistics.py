"""What the calls of a tool are doing, for schedulers and people. Pure: time is an argument.

A call waits for a worker, then for a lease, then it runs; a tool without workers or leases skips those. A scheduler
that has to choose what to do next asks `ToolStatistics.expected_wait_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["CallBoard", "CallPhase", "ToolStatistics"]

_RECENT = 100
"""Runs that the mean is over: enough to be steady, few enough to follow a change of the load."""


class CallPhase(StrEnum):
    """Where a call is."""

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
    workers: int | None = None
    """Calls that may wait for leases or run at once in this process; None: any number."""
    finished: int = 0
    """Calls that ended with a response."""
    failed: int = 0
    """Calls that ended without one: the service failed, or the trajectory was cancelled."""
    mean_run_s: float | None = None
    """Mean run time of the last runs (at most 100), seconds; None before the first."""
    sessions: int = 0
    """Sessions of trajectories that are alive."""

    @property
    def waiting(self) -> int:
        return self.waiting_for_worker + self.waiting_for_lease

    @property
    def expected_wait_s(self) -> float | None:
        """Time that a new call would wait, by what is known here: those before it, at the rate at which calls end now.

        0 where a worker is free and nobody waits. None where nothing has ended yet, so that there is no rate.
        """
        free = self.workers is None or self.running + self.waiting < self.workers
        if not self.waiting and free:
            return 0.0
        if self.mean_run_s is None:
            return None
        return (self.waiting + 1) * self.mean_run_s / max(1, self.running)


@dataclass(slots=True)
class CallBoard:
    """Counts calls through their phases. `workers` as in ToolStatistics."""

    workers: int | None = None
    _phases: dict[Hashable, CallPhase] = field(default_factory=dict)
    _started: dict[Hashable, float] = field(default_factory=dict)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _finished: int = 0
    _failed: int = 0

    def moved(self, call: Hashable, phase: CallPhase, now: float) -> None:
        """A call is in this phase from now on."""
        self._phases[call] = phase
        if phase is CallPhase.RUNNING:
            self._started[call] = now

    def ended(self, call: Hashable, now: float, *, answered: bool) -> None:
        """A call has ended; `answered`: with a response. Idempotent."""
        if self._phases.pop(call, None) is None:
            return
        started = self._started.pop(call, None)
        if answered:
            self._finished += 1
            if started is not None:
                self._recent.append(now - started)
        else:
            self._failed += 1

    def statistics(self, *, sessions: int = 0) -> ToolStatistics:
        """As it is now."""
        phases = list(self._phases.values())
        return ToolStatistics(
            running=phases.count(CallPhase.RUNNING),
            waiting_for_worker=phases.count(CallPhase.WORKER),
            waiting_for_lease=phases.count(CallPhase.LEASE),
            workers=self.workers,
            finished=self._finished,
            failed=self._failed,
            mean_run_s=sum(self._recent) / len(self._recent) if self._recent else None,
            sessions=sessions,
        )
