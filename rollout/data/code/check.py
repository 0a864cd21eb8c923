"""Grades the solutions that data bring for their own problems: one that fails shows tests that are no measure."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Sequence

from executor_service import Cause, ExecutorClient
from rollout.data.code.convert import Converted
from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow
from rollout.rewards import NotScored, RewardServices, Sample, find_reward

_AT_ONCE = 16
"""Problems that are graded at once; the executor's queue orders them among others."""
_FENCE = "~" * 12
"""Longer than any in a program."""


def solved(problems: Iterable[CodeProblem], executor: str, found: Converted) -> Iterator[CodeProblem]:
    """Problems whose own solution in Python passes all tests, or that have none; others go to `found.left`.

    `executor` is the address of one. Raises NotScored (INFRA) if it fails.
    """
    rest = iter(problems)
    with asyncio.Runner() as runner:
        while some := list(itertools.islice(rest, _AT_ONCE)):
            for problem, fault in zip(some, runner.run(_faults(some, executor)), strict=True):
                if fault:
                    found.leave(problem.where, problem, UnusableRow(RowFault.SOLUTION_FAILS, problem.where, fault))
                else:
                    found.unchecked += not problem.solution
                    yield problem


async def _faults(problems: Sequence[CodeProblem], executor: str) -> list[str]:
    """For each, why its solution fails; empty: it does not."""
    async with ExecutorClient(executor) as client:
        services = RewardServices(executor=client)
        return list(await asyncio.gather(*(_fault(problem, services) for problem in problems)))


async def _fault(problem: CodeProblem, services: RewardServices) -> str:
    if not problem.solution:
        return ""
    sample = Sample(text=f"{_FENCE}python\n{problem.solution}\n{_FENCE}", ground_truth=problem.ground_truth)
    try:
        reward = await find_reward(problem.reward)(sample, services)
    except NotScored as error:
        if error.cause is Cause.INFRA:
            raise
        return str(error)
    parts = reward.parts
    if reward.value == 1.0:
        return ""
    shares = ", ".join(f"{name} {parts[name]:.0%}" for name in ("passed", "wrong", "failed", "time_limit"))
    return f"its solution: {shares} of {parts['cases']:.0f} tests"
