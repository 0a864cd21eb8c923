"""Which workers there are, what each is doing, and which one takes the next trajectory. Pure; time is an argument.

A worker starts, is ready, and may be lost at any moment; one that is lost is started again after a pause that doubles
with each loss in a row, as long as the budget of all workers lasts. Invariants: a trajectory goes to a worker that is
ready, has room, and runs the fewest; what is heard of an earlier life of a worker changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["WorkerState", "WorkerTable", "WorkersStatistics"]

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class WorkerState(StrEnum):
    """Where a worker is."""

    PAUSED = "paused"
    """It is started when its pause is over."""
    STARTING = "starting"
    """It loads what it needs."""
    READY = "ready"
    """It takes trajectories."""
    GIVEN_UP = "given_up"
    """It was lost, and the budget of restarts is used up."""


@dataclass(frozen=True, slots=True)
class WorkersStatistics:
    """Counts over all workers."""

    ready: int
    starting: int
    """Those that pause are among them."""
    given_up: int
    running: int
    """Trajectories."""
    lost: int
    """Workers that died or did not answer, over the whole run."""

    def __str__(self) -> str:
        return f"{self.ready} ready, {self.starting} starting, {self.given_up} given up; {self.lost} were lost"


@dataclass(slots=True)
class _Worker:
    state: WorkerState = WorkerState.PAUSED
    life: int = 0
    """How often it was started."""
    running: int = 0
    start_at: float = 0.0
    in_a_row: int = 0
    """Losses since it was last ready."""


class WorkerTable:
    """`count` workers with room for `capacity` trajectories each, and `restarts` restarts in all."""

    def __init__(self, count: int, *, capacity: int, restarts: int, now: float) -> None:
        assert count > 0
        assert capacity > 0
        self._workers = [_Worker(start_at=now) for _ in range(count)]
        self._capacity = capacity
        self._restarts = restarts
        self._lost = 0
        self.why = ""
        """What the last lost worker was lost to."""

    @property
    def hopeless(self) -> bool:
        """Whether no worker will ever be ready again."""
        return all(worker.state is WorkerState.GIVEN_UP for worker in self._workers)

    @property
    def wake_at(self) -> float | None:
        """When a worker is to be started; None: none is."""
        paused = (worker.start_at for worker in self._workers if worker.state is WorkerState.PAUSED)
        return min(paused, default=None)

    def statistics(self) -> WorkersStatistics:
        states = [worker.state for worker in self._workers]
        return WorkersStatistics(
            ready=states.count(WorkerState.READY),
            starting=states.count(WorkerState.STARTING) + states.count(WorkerState.PAUSED),
            given_up=states.count(WorkerState.GIVEN_UP),
            running=sum(worker.running for worker in self._workers),
            lost=self._lost,
        )

    def due(self, now: float) -> list[tuple[int, int]]:
        """Those to start now, each with its new life."""
        started = []
        for number, worker in enumerate(self._workers):
            if worker.state is WorkerState.PAUSED and worker.start_at <= now:
                worker.state = WorkerState.STARTING
                worker.life += 1
                started.append((number, worker.life))
        return started

    def ready(self, number: int, life: int) -> None:
        """It takes trajectories from now on."""
        worker = self._workers[number]
        if worker.life == life and worker.state is WorkerState.STARTING:
            worker.state = WorkerState.READY
            worker.in_a_row = 0

    def lost(self, number: int, life: int, why: str, *, now: float) -> bool:
        """It died, or does not answer. Whether this was news."""
        worker = self._workers[number]
        if worker.life != life or worker.state not in (WorkerState.STARTING, WorkerState.READY):
            return False
        self._lost += 1
        self.why = why
        worker.running = 0
        if self._restarts <= 0:
            worker.state = WorkerState.GIVEN_UP
            return True
        self._restarts -= 1
        worker.state = WorkerState.PAUSED
        worker.start_at = now + min(_PAUSE_S * 2**worker.in_a_row, _LONGEST_PAUSE_S)
        worker.in_a_row += 1
        return True

    def take(self) -> tuple[int, int] | None:
        """A worker (and its life) for one trajectory; None: none has room."""
        free = [
            (worker.running, number)
            for number, worker in enumerate(self._workers)
            if worker.state is WorkerState.READY and worker.running < self._capacity
        ]
        if not free:
            return None
        _, number = min(free)
        self._workers[number].running += 1
        return number, self._workers[number].life

    def give_back(self, number: int, life: int) -> None:
        """The trajectory has ended, however it did."""
        worker = self._workers[number]
        if worker.life == life and worker.running:
            worker.running -= 1
