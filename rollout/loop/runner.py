"""Runs many trajectories at once, group by group, and hands over each that is kept.

`GroupScheduler` decides which run, are kept, are run again and are dropped; this does it. Invariants: no failure of one
trajectory reaches another; `sink` is called once for each that is kept; everything that was started has ended when
`run` returns or raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fairbox.clock import Clock, MonotonicClock
from rollout.engines.base import derived_seed
from rollout.journal import RunJournal
from rollout.loop.groups import Cancel, Decision, GroupEnded, GroupScheduler, HandOver, Schedule, Start
from rollout.loop.results import TrajectoryResult
from rollout.loop.scoring import SCORE_TIMEOUT_S, Score, Scoring
from rollout.loop.task import Task


class Loop(Protocol):
    """Plays trajectories: an `AgentLoop`, or many behind one interface."""

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        """Ends masked where the service failed, and raises nothing but cancellation."""
        ...


Sink = Callable[[TrajectoryResult, Task], None]


@dataclass(frozen=True, slots=True)
class RunnerStatistics:
    """Progress of a run."""

    planned: int
    """Trajectories to be handed over, if nothing fails or is cut short."""
    running: int
    """Played or scored now."""
    scoring: int
    """Running trajectories that are being scored."""
    finished: int
    """Handed over."""
    masked: int
    """Finished trajectories without a score."""
    retried: int
    scored_again: int
    """Repetitions of scoring alone."""
    dropped: int
    """Started and not handed over: stragglers, and what a limit of the run ended."""


class RolloutRunner:
    """Trajectories of each task, as `schedule` says. One that the service failed is played again up to `retries` times,
    and so is its scoring.

    `score` (see `rollout.loop.scoring`; None: nothing is scored) is called for those that are not masked, and `sink`
    for each that is kept. `slots` are places that several runners share: a trajectory takes one while it is played and
    scored, beside its place in `schedule`. Rewards that `journal` has are not computed again.
    """

    def __init__(
        self,
        loop: Loop,
        score: Score | None,
        sink: Sink,
        *,
        schedule: Schedule,
        retries: int,
        seed: int | None = None,
        score_timeout_s: float = SCORE_TIMEOUT_S,
        slots: asyncio.Semaphore | None = None,
        clock: Clock | None = None,
        journal: RunJournal | None = None,
    ) -> None:
        self._loop = loop
        self._sink = sink
        self._schedule = schedule
        self._retries = retries
        self._seed = seed
        self._slots = slots
        self._clock = clock or MonotonicClock()
        self._scoring = Scoring(score, timeout_s=score_timeout_s, retries=retries, clock=self._clock, journal=journal)
        self._planned = self._finished = self._masked = self._retried = self._dropped = 0
        self._scheduler: GroupScheduler | None = None
        """The scheduler of the run in progress."""
        self._tasks: Sequence[Task] = ()
        self._running: dict[int, asyncio.Task[TrajectoryResult]] = {}
        self._results: dict[int, TrajectoryResult] = {}
        """Ended, and neither handed over nor dropped yet."""
        self._news = asyncio.Event()

    def statistics(self) -> RunnerStatistics:
        live = self._scheduler
        return RunnerStatistics(
            planned=self._planned,
            running=live.running if live else 0,
            scoring=self._scoring.running,
            finished=self._finished,
            masked=self._masked,
            retried=self._retried + (live.retried if live else 0),
            scored_again=self._scoring.repeated,
            dropped=self._dropped,
        )

    async def run(self, tasks: Sequence[Task]) -> None:
        """Runs everything, one run at a time. Cancelling it cancels what runs; what was handed over stays so."""
        assert self._scheduler is None, "a run goes on"
        groups = len(tasks) if self._schedule.keep_groups is None else min(len(tasks), self._schedule.keep_groups)
        self._planned += groups * self._schedule.samples_per_prompt
        self._tasks = tasks
        self._scheduler = GroupScheduler(self._schedule, len(tasks), self._retries, now=self._clock.now())
        try:
            async with asyncio.TaskGroup() as group:
                await self._play(self._scheduler, group)
        finally:
            self._retried += self._scheduler.retried
            self._scheduler = None
            self._results.clear()

    async def _play(self, scheduler: GroupScheduler, group: asyncio.TaskGroup) -> None:
        while True:
            self._news.clear()
            for decision in scheduler.poll(self._clock.now()):
                self._do(decision, group)
            if scheduler.done:
                return
            wake_at = scheduler.wake_at
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else max(0.0, wake_at - self._clock.now())):
                    await self._news.wait()

    def _do(self, decision: Decision, group: asyncio.TaskGroup) -> None:
        match decision:
            case Start():
                task = group.create_task(self._one(decision), name=f"trajectory {decision.index}")
                self._running[decision.index] = task
                task.add_done_callback(partial(self._ended, decision.index))
            case Cancel():
                self._running[decision.index].cancel()
            case HandOver():
                self._hand_over(decision)
            case GroupEnded():
                self._group_ended(decision)

    async def _one(self, start: Start) -> TrajectoryResult:
        """Plays a trajectory and scores it. It keeps its place until it is scored, so that what waits to be scored is
        bounded too."""
        task = self._tasks[start.group]
        seed = derived_seed(self._seed, "trajectory", start.index)
        async with self._slots or contextlib.nullcontext():
            result = await self._loop.run(task, index=start.index, seed=seed, attempt=start.attempt)
            return await self._scoring.scored(task, result)

    def _ended(self, index: int, task: asyncio.Task[TrajectoryResult]) -> None:
        del self._running[index]
        scheduler = self._scheduler
        if scheduler is None:
            return  # the run was cancelled
        if task.cancelled() or task.exception() is not None:
            scheduler.cancelled(index)
        else:
            result = task.result()
            self._results[index] = result
            # Only what the service lost is run again: what can't be scored would not be by being played anew.
            again = result.masked and not result.unscored
            scheduler.ended(index, masked=result.masked, again=again, now=self._clock.now())
        self._news.set()

    def _hand_over(self, decision: HandOver) -> None:
        result = self._results.pop(decision.index)
        self._finished += 1
        self._masked += result.masked
        self._sink(result, self._tasks[decision.group])

    def _group_ended(self, ended: GroupEnded) -> None:
        for index in [index for index in self._results if index in ended.indices]:
            del self._results[index]
        self._dropped += ended.dropped
