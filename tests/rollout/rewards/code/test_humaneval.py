"""HumanEval: every canonical solution is worth 1, and for every problem a program that is nearly right is worth 0."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from examples.mutants import distinct_mutant, mutants_of
from rollout.data.code import CodeProblem
from rollout.rewards import RewardServices
from rollout.rewards.code.functions import completion_of

T = TypeVar("T")

AT_ONCE = 8
SEVERAL_RIGHT = {
    "HumanEval/32": "def accepts(arguments, value):\n    return abs(poly(*arguments, value)) < 1e-2\n",
}
"""Problems with more than one right answer: a mutant has to give a wrong one, and not only another."""


async def all_of(problems: Sequence[CodeProblem], work: Callable[[CodeProblem], Awaitable[T]]) -> dict[str, T]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(problem: CodeProblem) -> T:
        async with room:
            return await work(problem)

    async with asyncio.TaskGroup() as group:
        tasks = {problem.uid: group.create_task(one(problem)) for problem in problems}
    return {uid: task.result() for uid, task in tasks.items()}


async def test_every_canonical_solution_is_worth_one(
    scored: Callable[..., Any], humaneval_problems: list[CodeProblem]
) -> None:
    async def score(problem: CodeProblem) -> float:
        body = problem.solution.removeprefix(problem.question)
        whole = int(problem.uid.rpartition("/")[2]) % 2
        answer = f"Sure.\n```python\n{problem.solution}\n```\nDone." if whole else body
        return float((await scored("humaneval", answer, problem.ground_truth, wall_time_s=30.0)).value)

    values = await all_of(humaneval_problems, score)
    assert len(values) == 164
    assert {uid for uid, value in values.items() if value != 1.0} == set()


async def test_for_every_problem_a_mutant_is_worth_nothing(
    scored: Callable[..., Any], services: RewardServices, humaneval_problems: list[CodeProblem]
) -> None:
    executor = services.executor
    assert executor is not None

    async def score(problem: CodeProblem) -> float:
        completion = completion_of(json.loads(problem.ground_truth))
        found = await distinct_mutant(
            executor, completion, problem.solution, accepts=SEVERAL_RIGHT.get(problem.uid, "")
        )
        assert found is not None, f"{problem.uid} has no mutant with an input that shows it"
        mutant, witness = found
        assert witness.expected != witness.actual
        reward = await scored("humaneval", f"```python\n{mutant.source}\n```", problem.ground_truth, wall_time_s=30.0)
        assert reward.parts["answered"] == 1.0
        return float(reward.value)

    values = await all_of(humaneval_problems, score)
    assert len(values) == 164
    assert {uid for uid, value in values.items() if value != 0.0} == set()


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("x = a < b", ["Lt became LtE", "Lt became Gt"]),
        ("x = a + b * 2", ["Add became Sub", "Mult became Add", "2 became 3"]),
        ("x += 1", ["Add became Sub", "1 became 2"]),
        (
            "def f(a: int = 0) -> 3:\n    'Doc.'\n    return not a and True",
            ["0 became 1", "and became or", "True became False"],
        ),
        ("x = '%d' % n", ["'%d' became '%dx'"]),
        ("x = max(a) if a else len(a)", ["a condition was negated", "max became min", "len became one more"]),
        ("x = [i for i in a if i]", ["a condition was negated"]),
        ("pass", []),
    ],
)
def test_mutants_differ_by_one_change(source: str, changes: list[str]) -> None:
    mutants = mutants_of(source)
    assert sorted(mutant.change.partition(": ")[2] for mutant in mutants) == sorted(changes)
    original = ast.dump(ast.parse(source))
    texts = {mutant.source for mutant in mutants}
    assert len(texts) == len(mutants)
    assert all(ast.dump(ast.parse(text)) != original for text in texts)


async def test_a_mutant_comes_with_an_input_that_shows_it(services: RewardServices) -> None:
    truth = {
        "prompt": 'def twice(x):\n    """Doubles."""\n',
        "test": "def check(candidate):\n    assert candidate(0) == 0\n    assert candidate(7) == 14\n",
        "entry_point": "twice",
    }
    assert services.executor is not None
    found = await distinct_mutant(services.executor, completion_of(truth), "    return x * 2\n")
    assert found is not None
    mutant, witness = found
    names: dict[str, Any] = {}
    exec(mutant.source, names)
    arguments = ast.literal_eval(witness.arguments)
    assert repr(names["twice"](*arguments)) == witness.actual != witness.expected
    # One that has no such input: what it changes is never used.
    unused = completion_of(truth | {"test": "def check(candidate):\n    candidate(0)\n"})
    assert await distinct_mutant(services.executor, unused, "    return x if x > -1 else x\n") is None
