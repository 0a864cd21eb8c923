"""verl's result codes and its functions' form, at a real executor."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import pytest

from executor_service import Cause
from rollout.interop.verl.code_score import prime_code, sandbox_fusion
from rollout.rewards import NotScored, RewardServices
from rollout.rewards.code.verl_codes import VerlCode, verl_score
from tests.executor.servers import Server

SUM = "```python\nprint(sum(map(int, input().split())))\n```"
CASES = {"inputs": ["1 2", "5 5", "0 0"], "outputs": ["3", "10", "0"]}
NOTHING = {"inputs": [""], "outputs": [""]}


@pytest.mark.parametrize(
    ("completion", "cases", "codes", "statuses"),
    [
        (SUM, CASES, [True] * 3, ["success"] * 3),
        ("```\nprint(3)\n```", CASES, [True, False, False], ["success", "wrong_answer", "wrong_answer"]),
        ("```python\nraise ValueError\n```", NOTHING, [-2], ["runtime_error"]),
        ("```python\nimport time; time.sleep(60)\n```", NOTHING, [-3], ["timeout"]),
        (
            "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```",
            {"fn_name": "add", "inputs": ["1\n2", "[1]\n[2]\n", "1\n[]"], "outputs": ["3", "[1, 2]", "0"]},
            [True, True, -2],
            ["success", "success", "runtime_error"],
        ),
        (
            "```python\ndef add(a, b):\n    return a + b\n```",
            {"assert_case": ["assert add(1, 2) == 3", "assert add(1, 2) == 4"]},
            [True, False],
            ["success", "wrong_answer"],
        ),
    ],
)
async def test_every_case_has_the_code_that_verl_gives_it(
    services: RewardServices, completion: str, cases: dict[str, Any], codes: list[Any], statuses: list[str]
) -> None:
    score, metadata = await verl_score(services, completion, json.dumps(cases), timeout=1.0)
    assert [each["result"] for each in metadata] == codes
    assert [each["status"] for each in metadata] == statuses
    assert score == sum(code is True for code in codes) / len(codes)
    assert [each["case_index"] for each in metadata] == list(range(len(codes)))


async def test_a_program_that_does_not_compile(services: RewardServices) -> None:
    try:
        score, metadata = await verl_score(services, "```cpp\nint main( {}\n```", NOTHING, language="cpp")
    except NotScored:
        pytest.skip("the server of these tests has no C++")
    assert (score, metadata[0]["result"]) == (0.0, VerlCode.COMPILE_ERROR)


async def test_a_continuous_score_is_of_the_first_ten(services: RewardServices) -> None:
    cases = {"inputs": [str(n) for n in range(20)], "outputs": [str(n if n < 5 else 99) for n in range(20)]}
    score, metadata = await verl_score(services, "```\nprint(input())\n```", cases, continuous=True)
    assert (score, len(metadata)) == (0.5, 10)
    score, metadata = await verl_score(services, "```\nprint(input())\n```", cases)
    assert (score, len(metadata)) == (0.25, 20)


async def test_no_code_is_worth_nothing(services: RewardServices) -> None:
    assert await verl_score(services, "I give up.", CASES) == (
        0.0,
        [{"error": "Invalid completion (missing code block)"}],
    )


@pytest.mark.parametrize("cases", ["[", "[]", {}, {"inputs": ["1"], "outputs": []}, {"inputs": [], "outputs": []}])
async def test_cases_that_can_not_be_used_are_not_scored(services: RewardServices, cases: Any) -> None:
    with pytest.raises(NotScored) as raised:
        await verl_score(services, SUM, cases)
    assert raised.value.cause is Cause.TASK


async def test_the_functions_are_called_as_verls_are(grading_server: Server) -> None:
    target = grading_server.target
    score, metadata = await asyncio.to_thread(
        sandbox_fusion, target, None, 512, SUM, json.dumps(CASES), continuous=True
    )
    assert (score, len(metadata)) == (1.0, 3)
    right, _ = await asyncio.to_thread(prime_code, "print(sum(map(int, input().split())))", CASES, executor=target)
    assert right is True
    wrong, _ = await asyncio.to_thread(prime_code, "print(3)", CASES, executor=target)
    assert wrong is False
    share, _ = await asyncio.to_thread(prime_code, "print(3)", CASES, True, target)
    assert share == pytest.approx(1 / 3)


def test_the_parameters_are_verls() -> None:
    names = list(inspect.signature(sandbox_fusion).parameters)[1:]
    assert names == ["concurrent_semaphore", "memory_limit_mb", "completion", "test_cases", "continuous", "timeout"]
    assert list(inspect.signature(prime_code).parameters)[:3] == ["completion", "test_cases", "continuous"]
