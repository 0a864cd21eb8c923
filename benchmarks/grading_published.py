"""HumanEval through the reward function `humaneval`: every canonical solution and a mutant of each, graded once."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.executor_server import executor
from benchmarks.rows import Row, figure, skipped
from examples.mutants import distinct_mutant
from executor_service import ExecutorClient
from rollout.data.code import CodeProblem, read_code_problems
from rollout.rewards import RewardServices, Sample
from rollout.rewards.code import humaneval
from rollout.rewards.code.functions import completion_of

BAR_S = 20.0
AT_ONCE = 16
"""Answers that are graded at once, as a trainer would send those of a step."""
SEVERAL_RIGHT = {"HumanEval/32": "def accepts(arguments, value):\n    return abs(poly(*arguments, value)) < 1e-2\n"}
"""Any zero of a polynomial is right there, so a mutant has to give none."""


async def humaneval_rows() -> list[Row]:
    """Wall time of all, and what a grading costs."""
    path = Path(os.environ.get("FAIRBOX_DATA", "data")) / "humaneval" / "HumanEval.jsonl.gz"
    if not path.is_file():
        return [skipped("HumanEval", "set FAIRBOX_DATA to a folder with humaneval/HumanEval.jsonl.gz")]
    problems = read_code_problems(path)
    async with executor("languages=python", "max_concurrent=4") as (client, _):
        mutants = await _mutants(client, problems)
        await _scores(client, problems[:8], [problem.solution for problem in problems[:8]])
        began = time.perf_counter()
        right = await _scores(client, problems, [problem.solution for problem in problems])
        middle = time.perf_counter()
        wrong = await _scores(client, problems, mutants)
        ended = time.perf_counter()
    number = len(problems)
    both = f"{number} canonical solutions {middle - began:.1f} s, {number} mutants {ended - middle:.1f} s"
    return [
        figure("HumanEval, all solutions and mutants", ended - began, "s", most=BAR_S, against=both),
        figure("HumanEval, one answer", (ended - began) / (2 * number) * 1e3, "ms", against=f"{AT_ONCE} at once"),
        figure("HumanEval, canonical solutions worth 1", sum(each == 1.0 for each in right), "", least=number),
        figure("HumanEval, mutants worth 0", sum(each == 0.0 for each in wrong), "", least=number),
    ]


async def _mutants(client: ExecutorClient, problems: Sequence[CodeProblem]) -> list[str]:
    async def one(problem: CodeProblem) -> str:
        accepts = SEVERAL_RIGHT.get(problem.uid, "")
        found = await distinct_mutant(
            client, completion_of(json.loads(problem.ground_truth)), problem.solution, accepts=accepts
        )
        if found is None:
            raise RuntimeError(f"{problem.uid} has no mutant with an input that shows it")
        return found[0].source

    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(one(problem)) for problem in problems]
    return [task.result() for task in made]


async def _scores(client: ExecutorClient, problems: Sequence[CodeProblem], programs: Sequence[str]) -> list[float]:
    services, room = RewardServices(executor=client), asyncio.Semaphore(AT_ONCE)

    async def one(problem: CodeProblem, program: str) -> float:
        async with room:
            sample = Sample(text=f"```python\n{program}\n```", ground_truth=problem.ground_truth)
            return (await humaneval(sample, services)).value

    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(one(*each)) for each in zip(problems, programs, strict=True)]
    return [task.result() for task in made]
