"""Grading can't be cheated: honest solutions pass every case of every style, and no known trick passes one.

On a real server, with what programs really run in. `tricks` holds the candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from executor_service import Cause, ExecutorClient, Limits, Verdict, VerifyResult
from executor_service.grading.model import Case
from tests.executor import tricks
from tests.executor.servers import Server, processes_with, wait_for

LIMITS = Limits(wall_time_s=4, memory_bytes=512 << 20, processes=16)
STYLES: dict[str, tuple[Sequence[Case], dict[str, Any]]] = {
    "FUNCTION": (tricks.FUNCTION, {"entry_point": "add"}),
    "ASSERT": (tricks.ASSERT, {"setup_code": tricks.SETUP}),
    "PYTEST": (tricks.PYTEST, {"test_files": [tricks.TEST_FILE]}),
}
SLOW = ("never returns", "stops itself", "forks and answers twice", "recurses", "a huge value")
"""Are ended by a limit in each case: one case of each style is enough."""
ENDLESS = ("never returns", "stops itself", "replaces its own answers", "hangs after the answer")
"""Are ended by the limit of wall time."""


async def grade(
    executor: ExecutorClient, style: str, code: str, *, some: bool = False, limits: Limits = LIMITS
) -> VerifyResult:
    cases, more = STYLES[style]
    result = await executor.verify(code, cases[:1] if some else cases, limits=limits, **more)
    if any("pytest can't be imported" in case.message for case in result.cases):
        pytest.skip("pytest is not installed for the interpreter of programs")
    return result


def limits_of(name: str) -> Limits:
    return replace(LIMITS, wall_time_s=2) if name in ENDLESS else LIMITS


def said(result: VerifyResult) -> list[tuple[str, str, str, str]]:
    return [(case.case_id, case.verdict, case.cause, case.message) for case in result.cases]


@pytest.mark.parametrize("name", tricks.HONEST)
async def test_an_honest_solution_passes_every_case(executor: ExecutorClient, name: str) -> None:
    limits = replace(LIMITS, wall_time_s=30)
    for result in await asyncio.gather(*(grade(executor, each, tricks.HONEST[name], limits=limits) for each in STYLES)):
        assert [each for each in said(result) if each[1] != Verdict.PASSED] == []
        assert result.all_passed


@pytest.mark.parametrize("name", [*tricks.MODULES, *tricks.VALUES])
async def test_a_trick_passes_no_case_and_is_scored(executor: ExecutorClient, name: str) -> None:
    code, some, limits = (tricks.MODULES | tricks.VALUES)[name], name in SLOW, limits_of(name)
    results = await asyncio.gather(*(grade(executor, each, code, some=some, limits=limits) for each in STYLES))
    for style, result in zip(STYLES, results, strict=True):
        assert result.passed == 0, (style, said(result))
        assert {case.verdict for case in result.cases} <= {Verdict.WRONG_ANSWER, Verdict.FAILED}, (style, said(result))
        assert result.cause is Cause.POLICY, (style, said(result))


@pytest.mark.parametrize("name", tricks.HONEST_STDIO)
async def test_an_honest_program_passes_every_case(executor: ExecutorClient, name: str) -> None:
    result = await executor.verify(tricks.HONEST_STDIO[name], tricks.STDIO, limits=LIMITS)
    assert result.all_passed, said(result)


@pytest.mark.parametrize("name", tricks.PROGRAMS)
async def test_a_trick_of_a_program_passes_no_case(executor: ExecutorClient, name: str) -> None:
    result = await executor.verify(tricks.PROGRAMS[name], tricks.STDIO[-1:], limits=limits_of(name))
    assert result.passed == 0, said(result)
    assert result.cause is Cause.POLICY, said(result)


@pytest.mark.parametrize("style", STYLES)
async def test_tests_and_expected_values_are_nowhere_near_the_candidate(executor: ExecutorClient, style: str) -> None:
    code = tricks.SEARCH + "def add(a, b):\n    search()\n    return 0\n"
    result = await grade(executor, style, code)
    outputs = [case.execution.stdout.text for case in result.cases if case.execution is not None]
    searched = [line for output in outputs for line in output.splitlines() if line.startswith("found")]
    assert searched
    assert set(searched) == {"found []"}


async def test_what_is_searched_for_is_found_where_it_is(executor: ExecutorClient) -> None:
    code = tricks.SEARCH + "def add(a, b):\n    search()\n    return 0\n"
    cases, _ = STYLES["FUNCTION"]
    result = await executor.verify(code, cases[:1], files=[tricks.TEST_FILE], entry_point="add", limits=LIMITS)
    assert result.cases[0].execution is not None
    assert "test_add.py" in result.cases[0].execution.stdout.text


async def test_a_conftest_of_the_candidate_is_not_seen_by_the_tests(executor: ExecutorClient) -> None:
    from executor_service import InputFile

    cases, more = STYLES["PYTEST"]
    conftest = (
        "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n    outcome = yield\n"
    )
    conftest += "    outcome.get_result().outcome = 'passed'\n"
    files = [InputFile("conftest.py", conftest.encode()), InputFile("pytest.ini", b"[pytest]\naddopts = --co\n")]
    result = await executor.verify("def add(a, b):\n    return 0\n", cases, files=files, limits=LIMITS, **more)
    assert result.passed == 0, said(result)


async def test_nothing_of_a_candidate_is_left(executor: ExecutorClient, server: Server) -> None:
    code = (
        "import os, subprocess, sys\n"
        "def add(a, b):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(9731)'], start_new_session=True)\n"
        "    return a + b\n"
    )
    for style in STYLES:
        assert (await grade(executor, style, code, limits=replace(LIMITS, wall_time_s=30))).all_passed
    wait_for(lambda: not processes_with("sleep(9731)"))
    wait_for(lambda: server.status().running == 0)
