"""Scoring in the runner: beside other trajectories, within its time, and never a zero for what could not be scored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor_service import Cause
from rollout.engines import SamplingParams
from rollout.loop import AgentLoop, Limits, RolloutRunner, Schedule, Task, TrajectoryResult
from rollout.loop.scoring import Score
from rollout.rewards import NotScored, Reward, RewardFault
from rollout.testing import ScriptedEngine
from rollout.tokens import ChatTemplate, HubTokenizer
from rollout.tools import Toolbox


class Player:
    """Makes runners whose model answers at once, and keeps what they hand over."""

    def __init__(self, loop: AgentLoop) -> None:
        self.loop = loop
        self.results: list[TrajectoryResult] = []

    def __call__(self, score: Score, *, retries: int = 0, timeout_s: float = 60.0, **options: Any) -> RolloutRunner:
        return RolloutRunner(
            self.loop,
            score,
            lambda result, task: self.results.append(result),
            schedule=Schedule(**{"concurrency": 8} | options),
            retries=retries,
            score_timeout_s=timeout_s,
        )


def tasks(count: int) -> list[Task]:
    return [Task(str(n), ({"role": "user", "content": f"What? {n}"},), "6", "test", f"here:{n}") for n in range(count)]


@pytest.fixture
def runner(tokenizer: HubTokenizer, chat: ChatTemplate) -> Player:
    engine = ScriptedEngine(tokenizer, lambda request, turn: "#### 6", vocab_size=49152)
    return Player(AgentLoop(engine, chat, Toolbox([]), Limits(), SamplingParams()))


async def test_trajectories_are_scored_at_once_and_hand_their_rewards_over(runner: Player) -> None:
    all_there = asyncio.Event()

    async def score(task: Task, result: TrajectoryResult) -> Reward:
        if playing.statistics().scoring == 4:
            all_there.set()
        await all_there.wait()
        return Reward(float(task.uid), {"own": 1.0})

    playing = runner(score)
    await playing.run(tasks(4))
    assert sorted(result.reward.value for result in runner.results if result.reward) == [0.0, 1.0, 2.0, 3.0]
    assert (playing.statistics().scoring, playing.statistics().masked) == (0, 0)
    assert all(result.times.score_s >= 0 for result in runner.results)


@pytest.mark.parametrize("cause", [Cause.INFRA, Cause.TASK])
async def test_what_is_not_scored_is_masked_with_its_cause(runner: Player, cause: Cause) -> None:
    async def score(task: Task, result: TrajectoryResult) -> Reward:
        raise NotScored(cause, "no tests")

    playing = runner(score)
    await playing.run(tasks(1))
    (result,) = runner.results
    assert (result.masked, result.unscored, result.reward, result.cause) == (True, True, None, cause)
    assert result.error == "scoring: no tests"
    assert playing.statistics().masked == 1


async def test_a_services_failure_is_scored_again_and_the_trajectory_is_not_played_again(runner: Player) -> None:
    seen: list[str] = []

    async def score(task: Task, result: TrajectoryResult) -> Reward:
        seen.append(result.trajectory_id)
        if len(seen) == 1:
            raise NotScored(Cause.INFRA, "the executor is gone")
        return Reward(1.0)

    playing = runner(score, retries=1)
    await playing.run(tasks(1))
    assert (runner.results[0].reward, runner.results[0].attempts) == (Reward(1.0), 1)
    assert len(set(seen)) == 1
    assert (playing.statistics().scored_again, playing.statistics().retried) == (1, 0)


@pytest.mark.parametrize(
    "problem", [NotScored(Cause.TASK, "no tests"), RewardFault("gave nan"), KeyError("a defect")], ids=repr
)
async def test_what_would_fail_again_is_not_scored_again(runner: Player, problem: Exception) -> None:
    calls = []

    def score(task: Task, result: TrajectoryResult) -> Reward:
        calls.append(task)
        raise problem

    await runner(score, retries=3).run(tasks(1))
    assert len(calls) == 1
    assert runner.results[0].masked
    assert runner.results[0].cause is (problem.cause if isinstance(problem, NotScored) else Cause.INFRA)


async def test_a_grader_that_hangs_costs_its_own_trajectory_and_its_time(runner: Player) -> None:
    async def score(task: Task, result: TrajectoryResult) -> Reward:
        if task.uid == "0":
            await asyncio.Event().wait()
        return Reward(1.0)

    await runner(score, retries=3, timeout_s=0.2).run(tasks(3))
    hung, *others = sorted(runner.results, key=lambda result: result.uid)
    assert (hung.cause, hung.error) == (Cause.INFRA, "scoring: no reward within 0.2 s")
    assert [result.reward for result in others] == [Reward(1.0)] * 2


async def test_a_grader_whose_own_work_was_cancelled_is_a_fault_and_ends_nothing_else(runner: Player) -> None:
    async def score(task: Task, result: TrajectoryResult) -> Reward:
        raise asyncio.CancelledError

    async with asyncio.timeout(30):
        await runner(score).run(tasks(2))
    assert [result.error for result in runner.results] == ["scoring: something that it waited for was cancelled"] * 2


async def test_cancelling_a_run_cancels_its_scoring(runner: Player) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def score(task: Task, result: TrajectoryResult) -> Reward:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    playing = runner(score)
    run = asyncio.create_task(playing.run(tasks(1)))
    await entered.wait()
    assert playing.statistics().scoring == 1
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert left.is_set()
    assert playing.statistics().scoring == 0


async def test_a_straggler_is_ended_while_it_is_scored(runner: Player) -> None:
    cancelled = []

    async def score(task: Task, result: TrajectoryResult) -> Reward:
        if result.index:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(result.index)
                raise
        await asyncio.sleep(0.05)
        return Reward(1.0)

    playing = runner(score, extra_samples=2)
    async with asyncio.timeout(30):
        await playing.run(tasks(1))
    assert [result.index for result in runner.results] == [0]
    assert (sorted(cancelled), playing.statistics().dropped) == ([1, 2], 2)


async def test_scoring_is_no_part_of_a_trajectorys_time(runner: Player) -> None:
    async def score(task: Task, result: TrajectoryResult) -> Reward:
        await asyncio.sleep(0.3)
        return Reward(result.times.total_s)

    await runner(score).run(tasks(1))
    (result,) = runner.results
    assert result.reward is not None
    assert result.times.total_s == result.reward.value  # as it was before scoring
    assert result.times.score_s >= 0.29
