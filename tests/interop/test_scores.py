"""Rewards of other trainers' rows: from a name, a file or a function, and never a zero for what can't be scored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from executor_service import Cause
from fairbox.errors import ConfigError
from rollout.interop.scores import RowScorer, ground_truth
from rollout.interop.shared import close_shared
from rollout.interop.verl.reward import compute_score, compute_score_sync, sample_of
from rollout.rewards import NotScored, RewardFault, RewardServices, Sample

TRIES: list[str] = []


def untestable(sample: Sample) -> float:
    TRIES.append(sample.text)
    raise NotScored(Cause.TASK, "it has no tests")


async def unreachable(sample: Sample) -> float:
    TRIES.append(sample.text)
    raise NotScored(Cause.INFRA, "the executor is gone")


def recovering(sample: Sample) -> float:
    TRIES.append(sample.text)
    if len(TRIES) == 1:
        raise NotScored(Cause.INFRA, "the executor is gone")
    return 1.0


async def sees_executor(sample: Sample, services: RewardServices) -> float:
    return float(services.executor is not None)


def sees_row(sample: Sample) -> float:
    assert (sample.data_source, sample.turns, sample.ground_truth) == ("d", 3, '{"inputs": ["1"]}')
    assert sample.row["reward_model"] == {"ground_truth": {"inputs": ["1"]}}
    return float(sample.row["extra_info"]["index"])


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rewards.yaml"
    path.write_text(f"reward: [{{fn: gsm8k, weight: 2}}, {{fn: '{__name__}:sees_executor', name: has}}]")
    return str(path)


async def score(reward: str, text: str = "#### 6", **kwargs: Any) -> dict[str, float]:
    TRIES.clear()
    return await compute_score("d", text, "6", {"num_turns": 2}, reward=f"{__name__}:{reward}", **kwargs)


async def test_verls_function_gives_the_score_and_its_parts(file: str) -> None:
    assert await compute_score("openai/gsm8k", "so #### 6", "6") == {
        "gsm8k": 1.0,
        "gsm8k/correct": 1.0,
        "gsm8k/answered": 1.0,
        "score": 1.0,
    }
    found = await compute_score("d", "#### 6", "6", None, reward=file, reward_router_address="x")
    assert (found["score"], found["has"]) == (3.0, 1.0)
    truth = {"inputs": ["1"]}
    found = await compute_score("d", "", truth, {"index": 5, "num_turns": 6}, reward=f"{__name__}:sees_row")
    assert found["score"] == 5.0
    await close_shared()


async def test_what_can_not_be_scored_is_an_exception_and_no_zero() -> None:
    with pytest.raises(NotScored, match="untestable: it has no tests") as caught:
        await score("untestable", attempts=3)
    assert (caught.value.cause, len(TRIES)) == (Cause.TASK, 1)
    with pytest.raises(NotScored, match="the executor is gone") as caught:
        await score("unreachable", attempts=3)
    assert (caught.value.cause, len(TRIES)) == (Cause.INFRA, 3)
    assert (await score("recovering"))["score"] == 1.0
    with pytest.raises(RewardFault):
        await score("sees_row", attempts=3)


async def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"reward_kwargs\.rewrd is not an argument of compute_score; did you"):
        await compute_score("d", "", "6", rewrd="gsm8k")
    with pytest.raises(ConfigError, match="reward is 'gsm9k'"):
        await compute_score("d", "", "6", reward="gsm9k")
    with pytest.raises(ConfigError, match=r"reward_kwargs\.attempts is 0"):
        await compute_score("d", "", "6", attempts=0)


async def test_managers_without_a_loop_have_a_function_too() -> None:
    found = await asyncio.to_thread(compute_score_sync, "d", "#### 6", "6", None)
    assert found["score"] == 1.0


def test_turns_are_those_of_the_assistant() -> None:
    assert sample_of("d", "", "6", {"num_turns": 6}).turns == 3
    assert sample_of("d", "", "6", {"num_turns": None}).turns == sample_of("d", "", "6").turns == 1


async def test_an_executor_is_opened_for_functions_that_ask_for_it_alone(file: str) -> None:
    assert (await RowScorer(file, executor="127.0.0.1:1").score(Sample("", "6"))).parts["has"] == 1.0
    await close_shared()


def test_ground_truths_that_are_no_text_are_json() -> None:
    assert ground_truth({"reward_spec": {"ground_truth": ["1", 2]}}) == '["1", 2]'
    assert ground_truth({"reward_model": {"ground_truth": "6"}}) == "6"
    with pytest.raises(ConfigError, match=r"no reward_spec\.ground_truth"):
        ground_truth({"reward_spec": 3})
