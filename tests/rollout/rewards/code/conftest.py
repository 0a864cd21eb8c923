"""One real executor for the rewards of programs, and HumanEval where it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_service import ExecutorClient
from rollout.data.code import CodeProblem, read_code_problems
from rollout.rewards import NotScored, Reward, RewardServices, Sample, find_reward
from tests.executor.servers import Server, running


@pytest.fixture(scope="session")
def grading_server() -> Iterator[Server]:
    languages = ["bash", "python", *["cpp"] * (shutil.which("g++") is not None)]
    with running("max_concurrent=4", f"languages={','.join(languages)}") as started:
        yield started


@pytest.fixture
async def services(grading_server: Server) -> AsyncIterator[RewardServices]:
    async with ExecutorClient(grading_server.target) as client:
        yield RewardServices(executor=client)


@pytest.fixture
def scored(services: RewardServices) -> Callable[..., Any]:
    """`await scored("code_stdio", answer, truth, **arguments)`: the reward."""

    async def score(name: str, answer: str, truth: str, *, row: dict[str, Any] | None = None, **arguments: Any) -> Any:
        sample = Sample(text=answer, ground_truth=truth, row=row or {})
        try:
            reward = await find_reward(name)(sample, services, **arguments)
        except NotScored as error:
            if "pytest can't be imported" in str(error):
                pytest.skip("pytest is not installed for the interpreter of programs")
            raise
        assert isinstance(reward, Reward)
        return reward

    return score


@pytest.fixture(scope="session")
def humaneval_problems() -> list[CodeProblem]:
    """HumanEval, which is not part of the repository."""
    roots = [os.environ.get("FAIRBOX_DATA"), Path(__file__).parents[5] / "shared" / "data"]
    for root in roots:
        if root and (path := Path(root) / "humaneval" / "HumanEval.jsonl.gz").is_file():
            return read_code_problems(path)
    pytest.skip("HumanEval is not here: set FAIRBOX_DATA to a folder with humaneval/HumanEval.jsonl.gz")
