"""Scores trajectories that have ended, each within a time limit.

Invariants: a trajectory that is masked is not scored; what scoring raises ends the one trajectory as unscored, with its
cause, and never as a zero; cancelling a trajectory cancels its scoring. Scoring is no part of a trajectory's time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from opentelemetry.trace import StatusCode

from executor_service import Cause
from fairbox.clock import Clock
from fairbox.telemetry import logs, tracing
from rollout.cleanup import cancelled_here
from rollout.journal import RunJournal
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.rewards.base import NotScored, Reward, RewardFault

SCORE_TIMEOUT_S = 600.0
"""Longer than a grader's queue and its cases together take, and short enough for a run to get over a grader that
hangs."""
_AGAIN_AFTER_S = 0.5
"""Lets a service that is being restarted come back; doubled with each attempt."""
_LOG = logging.getLogger("fairbox.rollout")

Score = Callable[[Task, TrajectoryResult], Reward | Awaitable[Reward]]
"""The reward of a trajectory that is not masked. Raises NotScored with the cause; anything else that it raises is taken
for a defect, cause INFRA. It changes nothing outside of itself, so it may be called again."""


class Scoring:
    """`timeout_s` is the longest time of one trajectory's scoring, repetitions included; `retries` bounds those. If
    `score` is None, every trajectory stays as it is. Rewards that a `journal` has are not computed again."""

    def __init__(
        self, score: Score | None, *, timeout_s: float, retries: int, clock: Clock, journal: RunJournal | None = None
    ) -> None:
        self._score = score
        self._journal = journal
        self._timeout_s = timeout_s
        self._retries = retries
        self._clock = clock
        self.running = 0
        """Trajectories that are being scored."""
        self.repeated = 0
        """Scorings beyond the first of a trajectory."""

    async def scored(self, task: Task, result: TrajectoryResult) -> TrajectoryResult:
        """The trajectory with its reward, or unscored; a masked one as it is. Raises nothing but cancellation and
        JournalError."""
        if result.masked or self._score is None:
            return result
        began = self._clock.now()
        self.running += 1
        trajectory = tracing.trajectory_span(result.trajectory_id)
        try:
            with logs.bound(trajectory=result.trajectory_id), tracing.span("rollout.score", trajectory) as span:
                outcome = await self._recorded(task, result)
                if isinstance(outcome, NotScored):
                    span.set_attribute("fairbox.cause", outcome.cause.value)
                    span.set_status(StatusCode.ERROR, "not scored")
        finally:
            self.running -= 1
        times = replace(result.times, score_s=self._clock.now() - began)
        if isinstance(outcome, Reward):
            return replace(result, reward=outcome, times=times)
        return replace(result, cause=outcome.cause, unscored=True, error=f"scoring: {outcome}", times=times)

    async def _recorded(self, task: Task, result: TrajectoryResult) -> Reward | NotScored:
        if self._journal is None:
            return await self._in_time(task, result)
        place = (result.index, result.attempts)
        if (reward := await self._journal.reward(*place)) is not None:
            return reward
        outcome = await self._in_time(task, result)
        if isinstance(outcome, Reward):  # what could not be scored is tried again
            await self._journal.keep(*place, outcome)
        return outcome

    async def _in_time(self, task: Task, result: TrajectoryResult) -> Reward | NotScored:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._attempts(task, result)
        except TimeoutError:
            return NotScored(Cause.INFRA, f"no reward within {self._timeout_s:g} s")

    async def _attempts(self, task: Task, result: TrajectoryResult) -> Reward | NotScored:
        attempt = 1
        while True:
            outcome = await self._once(task, result)
            failed = isinstance(outcome, NotScored) and outcome.cause is Cause.INFRA
            # Again is safe: a score changes nothing outside of itself, what it runs in a sandbox is run there anew
            # under an id of its own, and nothing of the failed attempt was handed over.
            if not failed or isinstance(outcome, RewardFault) or attempt > self._retries:
                return outcome
            self.repeated += 1
            await asyncio.sleep(_AGAIN_AFTER_S * 2 ** (attempt - 1))
            attempt += 1

    async def _once(self, task: Task, result: TrajectoryResult) -> Reward | NotScored:
        assert self._score is not None
        try:
            outcome = self._score(task, result)
            return await outcome if inspect.isawaitable(outcome) else outcome
        except NotScored as refusal:
            return refusal
        except asyncio.CancelledError:
            if cancelled_here():
                raise
            return RewardFault("something that it waited for was cancelled")
        except Exception as error:  # the boundary of a trajectory: a grader that breaks is not the model's wrong answer
            _LOG.exception("trajectory %s of %s could not be scored", result.trajectory_id, task.where)
            return RewardFault(f"{type(error).__name__}: {error}")
