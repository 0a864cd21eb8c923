"""Work of an executor on data: it makes the tests of problems that bring programs for them, and grades the solutions
that data bring for their own problems. One that fails shows tests that are no measure.

Invariants: an input is a test only if the validator ends with 0; a problem has all of its tests or is left out with the
first thing that was wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from executor_service import Cause, ExecutionResult, ExecutorClient, ExecutorError, InvalidRequest, Outcome, Program
from rollout.data.code.convert import Converted, fit
from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow
from rollout.rewards import NotScored, RewardServices, Sample, find_reward

T = TypeVar("T")

_AT_ONCE = 8
"""Problems that are worked on at once; the executor's queue orders them among others."""
_PARALLEL = 8
"""Programs of one problem that run at once: all together an executor's queue has room for."""
_FENCE = "~" * 12
"""Longer than any in a program."""


def with_tests(
    problems: Iterable[CodeProblem], executor: str, *, most_bytes: int, found: Converted
) -> Iterator[CodeProblem]:
    """All problems, with their tests made by the `executor` (its address; empty: there is none); those of which none
    can be made go to `found.left`. Raises NotScored (INFRA) if the executor fails."""
    pairs: Iterable[tuple[CodeProblem, CodeProblem | UnusableRow]] = ((problem, problem) for problem in problems)
    for problem, made in _each(problems, executor, _with_tests) if executor else pairs:
        try:
            if isinstance(made, UnusableRow):
                raise made
            if made.recipe is not None:
                text = "its tests are to be made by generators: name an executor"
                raise UnusableRow(RowFault.NO_TESTS, made.where, text)
            truth, cut = fit(made, most_bytes)
        except UnusableRow as error:
            found.leave(problem.where, problem, error)
            continue
        found.cut += bool(cut)
        found.cases_cut += cut
        yield replace(made, ground_truth=truth)


def solved(problems: Iterable[CodeProblem], executor: str, found: Converted) -> Iterator[CodeProblem]:
    """Problems whose own solution in Python passes all tests, or that have none; others go to `found.left`.

    `executor` is the address of one. Raises NotScored (INFRA) if it fails.
    """
    for problem, fault in _each(problems, executor, _fault):
        if fault:
            found.leave(problem.where, problem, UnusableRow(RowFault.SOLUTION_FAILS, problem.where, fault))
        else:
            found.unchecked += not problem.solution
            yield problem


def _each(
    problems: Iterable[CodeProblem], executor: str, work: Callable[[ExecutorClient, CodeProblem], Awaitable[T]]
) -> Iterator[tuple[CodeProblem, T]]:
    """Each problem, with what `work` makes of it."""
    rest = iter(problems)

    async def all_of(some: Sequence[CodeProblem]) -> list[T]:
        async with ExecutorClient(executor) as client:
            return list(await asyncio.gather(*(work(client, problem) for problem in some)))

    with asyncio.Runner() as runner:
        while some := list(itertools.islice(rest, _AT_ONCE)):
            yield from zip(some, runner.run(all_of(some)), strict=True)


async def _with_tests(client: ExecutorClient, problem: CodeProblem) -> CodeProblem | UnusableRow:
    recipe = problem.recipe
    if recipe is None:
        return problem
    names = [" ".join(run.args) or "nothing" for run in recipe.runs]
    try:
        runs = [replace(run.generator, args=run.args) for run in recipe.runs]
        inputs = await _printed(client, runs, [f"generator of {name!r}" for name in names], problem.where)
        if recipe.validator is not None:
            checks = [replace(recipe.validator, stdin=text) for text in inputs]
            await _printed(client, checks, [f"validator of the test of {name!r}" for name in names], problem.where)
        answers = [replace(recipe.solution, stdin=text) for text in inputs]
        outputs = await _printed(
            client, answers, [f"solution on the test of {name!r}" for name in names], problem.where
        )
    except UnusableRow as error:
        return error
    truth = json.loads(problem.ground_truth) | {"inputs": inputs, "outputs": outputs}
    return replace(problem, ground_truth=json.dumps(truth), recipe=None)


async def _printed(client: ExecutorClient, programs: Sequence[Program], names: Sequence[str], where: str) -> list[str]:
    """Output of each program. Raises UnusableRow for the first that has none."""
    printed = []
    results = await client.execute_all(programs, max_parallel=_PARALLEL)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, InvalidRequest):
            raise UnusableRow(RowFault.BAD_ROW, where, f"{name}: {result}")
        if isinstance(result, ExecutorError) or result.cause is Cause.INFRA:
            said = str(result) if isinstance(result, ExecutorError) else result.message
            raise NotScored(Cause.INFRA, f"{where}: {name}: {said}")
        printed.append(_text_of(result, name, where))
    return printed


def _text_of(result: ExecutionResult, name: str, where: str) -> str:
    """Its output as a text. Raises UnusableRow."""
    said = (result.stderr.text.strip() or result.message)[:300]
    if result.outcome is not Outcome.FINISHED:
        raise UnusableRow(RowFault.NO_TESTS, where, f"{name}: {result.outcome}, exit code {result.exit_code}: {said}")
    if result.stdout.truncated:
        raise UnusableRow(RowFault.TOO_LARGE, where, f"{name}: {result.stdout.total_bytes} bytes")
    try:
        return result.stdout.data.decode()
    except UnicodeDecodeError:
        raise UnusableRow(RowFault.NO_TESTS, where, f"{name}: its output is no text") from None


async def _fault(client: ExecutorClient, problem: CodeProblem) -> str:
    """Why its solution fails; empty: it does not."""
    if not problem.solution:
        return ""
    sample = Sample(text=f"{_FENCE}python\n{problem.solution}\n{_FENCE}", ground_truth=problem.ground_truth)
    try:
        reward = await find_reward(problem.reward)(sample, RewardServices(executor=client))
    except NotScored as error:
        if error.cause is Cause.INFRA:
            raise
        return str(error)
    parts = reward.parts
    if reward.value == 1.0:
        return ""
    shares = ", ".join(f"{name} {parts[name]:.0%}" for name in ("passed", "wrong", "failed", "time_limit"))
    return f"its solution: {shares} of {parts['cases']:.0f} tests"
