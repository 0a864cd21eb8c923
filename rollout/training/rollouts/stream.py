"""Rollouts of a training run. Each step takes the groups that ended first; with `max_staleness` above 0 others go on
while the weights move, and with 0 a step's groups are all that is begun, when the step before is done.

`GroupLedger` decides which groups are begun and taken; this does it. New weights reach the engine between two
ids of a turn (`engine.interrupt=continue`), and each token says which sampled it. Invariants: at most `concurrency`
trajectories are played or scored; no failure of one group reaches another; what a step does not take is held in memory,
at most (max_staleness + 1) * prompts_per_step groups; everything that was begun has ended when the stream is left.

`async/staleness_*` are of groups, in steps. `async/lag_0`, `async/lag_1` ... are shares of the sampled tokens: how many
steps lie between the weights that sampled one and those that it moves; `async/lag_more` is beyond the bound of groups.
Shares of time are of the time since the step before was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from executor_service import Cause
from fairbox.errors import ConfigError, FairboxError
from fairbox.net.serving import until_stopped
from rollout.dump import DumpWriter
from rollout.engines.base import EngineUnavailable
from rollout.envs.base import Environment
from rollout.loop.groups import Schedule
from rollout.loop.results import TrajectoryResult
from rollout.loop.task import Task
from rollout.training.config import TrainConfig
from rollout.training.learner.sync import WeightSync, parse_version
from rollout.training.rollouts.lives import sampled_versions
from rollout.training.rollouts.loops import TrainingLoop
from rollout.training.rollouts.play import dump_into, make_runner, stream_task
from rollout.training.rollouts.staleness import GroupEnd, GroupLedger, StalenessRules, TakenGroup


@dataclass(frozen=True, slots=True)
class _Mark:
    """Clock and counters when the step before was taken."""

    at: float
    engine_busy_s: float
    lost: int
    replaced: int


def token_lags(results: Sequence[TrajectoryResult], step: int) -> Counter[int]:
    """Sampled tokens of what is not masked, by the steps between their weights and those that step `step` moves."""
    lags: Counter[int] = Counter()
    for result in results:
        for version, count in sampled_versions(result).items() if not result.masked else ():
            parsed = parse_version(version)
            assert parsed is not None, "trajectories of other weights are masked"
            lags[step - 1 - parsed[0]] += count
    return lags


def masked_shares(results: Sequence[TrajectoryResult]) -> dict[str, float]:
    """Share of trajectories that the service failed: of all, of those that called a tool, and of the others. If the
    last two differ, what is trained on is chosen by who calls tools."""
    groups = {
        "masked/infra": results,
        "masked/infra_callers": [result for result in results if result.tool_calls],
        "masked/infra_others": [result for result in results if not result.tool_calls],
    }
    return {
        name: sum(result.masked and result.cause is Cause.INFRA for result in found) / max(1, len(found))
        for name, found in groups.items()
    }


class StreamFigures:
    """`begin` when rollouts begin, then `taken` for each step."""

    def __init__(self, max_staleness: int) -> None:
        self._bound = max_staleness
        self._mark = _Mark(0.0, 0.0, 0, 0)

    def begin(self, *, now: float, engine_busy_s: float) -> None:
        """Starts the figures: the first weights are in the engine."""
        self._mark = _Mark(now, engine_busy_s, 0, 0)

    def taken(
        self,
        step: int,
        groups: Sequence[TakenGroup],
        results: Sequence[TrajectoryResult],
        ledger: GroupLedger,
        *,
        waited_s: float,
        now: float,
        engine_busy_s: float,
    ) -> dict[str, float]:
        """Figures of `step`, for which the trainer waited `waited_s`. `engine_busy_s` is the engine's own figure."""
        before, self._mark = self._mark, _Mark(now, engine_busy_s, ledger.lost, ledger.replaced)
        spent = max(now - before.at, 1e-9)
        ages = [group.staleness for group in groups]
        found = {
            "async/staleness_mean": sum(ages) / len(ages),
            "async/staleness_max": float(max(ages)),
            "async/staleness_min": float(min(ages)),
            "async/late": float(sum(age > self._bound for age in ages)),
            "async/running": float(ledger.running),
            "async/waiting": float(ledger.waiting),
            "async/lost": float(ledger.lost - before.lost),
            "async/replaced": float(ledger.replaced - before.replaced),
            "async/trajectories_per_min": 60 * len(results) / spent,
            "async/learner_waited": min(1.0, waited_s / spent),
            "async/engine_idle": max(0.0, 1 - (engine_busy_s - before.engine_busy_s) / spent),
            "time/rollouts_s": waited_s,
            **masked_shares(results),
        }
        return found | self._lag_shares(token_lags(results, step))

    def _lag_shares(self, lags: Counter[int]) -> dict[str, float]:
        total = max(1, lags.total())
        shares = {f"async/lag_{lag}": lags[lag] / total for lag in range(self._bound + 1)}
        return shares | {"async/lag_more": sum(count for lag, count in lags.items() if lag > self._bound) / total}


_LOG = logging.getLogger("fairbox.training")
MAX_BARREN_STEPS = 3
"""Steps whose number of groups ends a run, if the service fails so many in a row without a scored one between them."""

MAX_REPLACED_STEPS = 10
"""Steps whose number of groups is replaced before one step at most, as in verl's DAPO (`max_num_gen_batches`)."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Trajectories that a step is trained on."""

    results: Sequence[TrajectoryResult]
    """The trajectories, in the order of their indices."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures of the rollouts that gave them."""


class RolloutStream:
    """`async with RolloutStream(...) as stream:` around a run, behind `steps_done` steps; then `batch` and `trained`
    for each step in turn. `state` is what `state()` gave then. Leaving it ends whatever is played."""

    def __init__(
        self,
        config: TrainConfig,
        loop: TrainingLoop,
        environment: Environment,
        sync: WeightSync,
        *,
        out: Path,
        steps_done: int,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._loop = loop
        self._ahead = config.max_staleness > 0
        self._tasks = _step_problems(config, environment)
        self._sync = sync
        self._out = out
        rules = StalenessRules(
            per_step=config.prompts_per_step,
            max_staleness=config.max_staleness,
            workers=(config.max_staleness + 1) * config.prompts_per_step,
            steps=config.steps,
            replaced=MAX_REPLACED_STEPS * config.prompts_per_step * (config.advantage.equal_groups == "replace"),
        )
        self._ledger = GroupLedger(rules, step=steps_done + 1, state=_checked(state, len(self._tasks)))
        self._figures = StreamFigures(rules.max_staleness)
        self._environment = environment
        self._schedule = Schedule(
            config.samples_per_prompt + config.extra_samples, config.samples_per_prompt, config.extra_samples
        )
        self._places = asyncio.Semaphore(config.concurrency)
        self._left: dict[int, int] = {}
        """Group -> trajectories of it that have not ended."""
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._results: dict[int, list[TrajectoryResult]] = {}
        """Results of groups that wait for a step."""
        self._trained: list[str] = []
        """Ids of trajectories of steps that no checkpoint has yet."""
        self._refused = 0
        """Times in a row that a step was refused."""
        self._news = asyncio.Event()
        self._problem: Exception | None = None
        """Error that ends the run; `batch` raises it."""
        self._open = False
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        self._loop.leave()
        for task in self._playing.values():
            task.cancel()
        # Cancelled meanwhile, it still waits for all of them.
        await self._group.__aexit__(None, None, None)

    async def batch(self, step: int, stop: asyncio.Event) -> StepBatch | None:
        """The groups that ended first, dumped, as soon as there are enough; None if `stop` is set before. Raises
        FairboxError if there will be none.

        Rollouts begin with the first call, and with each one if none run ahead: the weights go to the engine before
        that, so that its caches hold nothing that a run resumed from a checkpoint would not have.
        """
        if not self._open or not self._ahead:
            await self._sync.push(step - 1)
            if not self._open:
                self._figures.begin(now=time.monotonic(), engine_busy_s=self._loop.engine.statistics().busy_s)
            self._open = True
            self._fill()
        began = time.monotonic()
        while True:
            if self._problem is not None:
                raise self._problem
            if (taken := self._ledger.take()) is not None and await self._fit(step, taken):
                break
            with contextlib.suppress(EngineUnavailable):  # for as long as the groups say so too
                await self._sync.ensure(step - 1)  # a server that was started again has other weights
            self._news.clear()
            if not await until_stopped(stop, self._news.wait()):
                return None
        results = await self._collect(taken, step)
        self._trained += [result.trajectory_id for result in results]
        waited_s, now = time.monotonic() - began, time.monotonic()
        figures = self._figures.taken(
            step,
            taken,
            results,
            self._ledger,
            waited_s=waited_s,
            now=now,
            engine_busy_s=self._loop.engine.statistics().busy_s,
        )
        return StepBatch(results, figures)

    async def _fit(self, step: int, taken: Sequence[TakenGroup]) -> bool:
        """Says whether a step may be trained on these groups; if not, they are begun again. What the service failed
        called tools, mostly, so what is left of a step would be chosen by that. Raises FairboxError if this was so too
        often in a row."""
        results = [result for group in taken for result in self._results[group.number]]
        failed = [result for result in results if result.masked and result.cause is Cause.INFRA]
        share, most = len(failed) / len(results), self._config.max_masked_share
        if share <= most:
            self._refused = 0
            return True
        self._refused += 1
        why = next((result.error for result in failed if result.error), "no reason is known")
        said = f"the service failed {share:.0%} of the trajectories of step {step} (max_masked_share={most:g}): {why}"
        if self._refused == MAX_BARREN_STEPS:
            raise FairboxError(f"{said}; this was the case {self._refused} times in a row")
        _LOG.warning("%s; all of them are played again", said)
        for group in taken:
            del self._results[group.number]
        await self._loop.drop(result.trajectory_id for result in results)
        self._ledger.refuse()
        self._fill()
        return False

    async def trained(self, step: int) -> None:
        """Records that the step was trained on its batch. If rollouts run ahead, the weights go to the engine first, so
        that a group which is begun for the next step has none that are older than it says."""
        try:
            if self._ahead and step < self._config.steps:
                await self._sync.ensure(step)
        finally:
            self._ledger.trained()  # that, at least, was done
        if self._ahead:
            self._fill()

    async def saved(self) -> None:
        """Records that a checkpoint has every step until now."""
        trained, self._trained = self._trained, []
        await self._loop.drop(trained)

    def state(self) -> dict[str, Any]:
        """State that a run needs to go on after the last step that was trained on, as plain values."""
        return self._ledger.state() | {"problems": len(self._tasks)}

    def _fill(self) -> None:
        """Begins groups while there are places that none of those that run will take: one that is begun early is old
        early."""
        while self._open and sum(self._left.values()) < self._config.concurrency:
            number = self._ledger.submit()
            if number is None:
                return
            self._left[number] = self._schedule.concurrency
            self._playing[number] = self._group.create_task(self._play(number), name=f"group {number}")

    def _trajectory_ended(self, number: int) -> None:
        self._left[number] = max(0, self._left[number] - 1)
        self._fill()

    async def _play(self, number: int) -> None:
        """Plays one group to its end."""
        results: list[TrajectoryResult] = []
        runner = make_runner(
            self._config,
            self._loop,
            self._environment,
            lambda result, task: results.append(result),
            self._schedule,
            number=number,
            first=number * self._schedule.concurrency,
            ended=partial(self._trajectory_ended, number),
            slots=self._places,
        )
        try:
            await runner.run([self._task(number)])
            if not self._keep(number, results):
                await self._loop.drop(result.trajectory_id for result in results)
        except Exception as error:  # the boundary of a group: no failure of a trajectory, but a defect, ends the run
            self._problem = self._problem or error
        finally:
            del self._playing[number], self._left[number]
            self._news.set()
            self._fill()

    def _keep(self, number: int, results: list[TrajectoryResult]) -> bool:
        """Says whether a step is to be trained on them."""
        rewards = [result.reward.value for result in results if result.reward is not None and not result.masked]
        end = self._ledger.ended(number, scored=len(rewards), equal=len(set(rewards)) < 2)
        if end is GroupEnd.WAITS:
            self._results[number] = results
        elif end is not GroupEnd.REPLACED:
            why = next((result.error for result in results if result.error), "no reason is known")
            again = "its problem is played again" if end is GroupEnd.LOST else "its problem is left out of this pass"
            _LOG.warning("every trajectory of group %d failed by the service (%s); %s", number, why, again)
            lost = self._ledger.lost_in_a_row
            if self._problem is None and lost >= MAX_BARREN_STEPS * self._config.prompts_per_step:
                self._problem = FairboxError(f"every trajectory of the last {lost} groups failed by the service: {why}")
        return end is GroupEnd.WAITS

    async def _collect(self, taken: Sequence[TakenGroup], step: int) -> list[TrajectoryResult]:
        """The trajectories of a step, dumped. Two plays of one problem, at the end of a pass and the beginning of the
        next, are two groups."""
        seen: Counter[str] = Counter()
        found: list[TrajectoryResult] = []
        with DumpWriter(self._out / "rollouts", step) as dump:
            for group in sorted(taken, key=lambda group: group.number):
                task, results = self._task(group.number), self._results.pop(group.number)
                seen[task.uid] += 1
                if (count := seen[task.uid]) > 1:
                    results = [replace(result, uid=f"{result.uid}#{count}") for result in results]
                for result in sorted(results, key=lambda result: result.index):
                    dump_into(dump, self._loop, result, task, step=step)
                    found.append(result)
                    await asyncio.sleep(0)  # what is played goes on between two lines
        return found

    def _task(self, number: int) -> Task:
        """The task of a group."""
        return self._tasks[stream_task(number, tasks=len(self._tasks), seed=self._config.sampling.seed or 0)]


def _checked(state: Mapping[str, Any] | None, problems: int) -> Mapping[str, Any] | None:
    """Raises ConfigError if the state is of other data."""
    if state is not None and state.get("problems") != problems:
        was = state.get("problems")
        raise ConfigError(f"data has {problems} problems, had {was} when the checkpoint was written")
    return state


def _step_problems(config: TrainConfig, environment: Environment) -> list[Task]:
    """The environment's tasks. Raises FairboxError if they are too few for a step."""
    tasks = list(environment.tasks())
    if config.prompts_per_step > len(tasks):
        given = f"prompts_per_step is {config.prompts_per_step}, must be at most {len(tasks)}"
        raise FairboxError(f"{given}, the number of problems")
    return tasks
