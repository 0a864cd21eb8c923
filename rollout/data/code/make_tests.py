"""Makes the tests of problems that bring programs for them.

Invariants: an input is a test only if the validator ends with 0; a problem has all of its tests or is left out with the
first thing that was wrong.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from executor_service import Cause, ExecutionResult, ExecutorClient, ExecutorError, InvalidRequest, Outcome, Program
from rollout.data.code.convert import Converted, fit
from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow
from rollout.rewards import NotScored

_AT_ONCE = 8
"""Problems whose tests are made at once."""
_PARALLEL = 8
"""Programs of one problem that run at once: all together an executor's queue has room for."""


def with_tests(
    problems: Iterable[CodeProblem], executor: str, *, most_bytes: int, found: Converted
) -> Iterator[CodeProblem]:
    """All problems, with their tests made by the `executor` (its address; empty: there is none); those of which none
    can be made go to `found.left`. Raises NotScored (INFRA) if the executor fails."""
    rest = iter(problems)
    with asyncio.Runner() as runner:
        while some := list(itertools.islice(rest, _AT_ONCE)):
            made = runner.run(_made(some, executor)) if any(each.recipe for each in some) else some
            for problem, ending in zip(some, made, strict=True):
                try:
                    if isinstance(ending, UnusableRow):
                        raise ending
                    truth, cut = fit(ending, most_bytes)
                except UnusableRow as error:
                    found.leave(problem.where, problem, error)
                    continue
                found.cut += bool(cut)
                found.cases_cut += cut
                yield replace(ending, ground_truth=truth)


async def _made(problems: Sequence[CodeProblem], executor: str) -> list[CodeProblem | UnusableRow]:
    if not executor:
        text = "its tests are to be made by generators: name an executor"
        return [UnusableRow(RowFault.NO_TESTS, each.where, text) if each.recipe else each for each in problems]
    async with ExecutorClient(executor) as client:
        return list(await asyncio.gather(*(_with_tests(client, problem) for problem in problems)))


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
