"""Programs run with a Python of another version than the server's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from executor_service import AssertCase, ExecutorClient, FunctionCase, Outcome, Session, Verdict
from tests.executor.servers import Server, running

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_FAILS = "def f(x):\n    return 1 / x\n\nprint('before', flush=True)\nf(0)\n"


def interpreter(version: str) -> str:
    """One of that version that starts; empty: there is none."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}", path="/usr/local/bin:/usr/bin"), *installed):
        if python and subprocess.run([python, "-c", ""], capture_output=True, timeout=30).returncode == 0:
            return str(python)
    return ""


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    version: str = request.param
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip("it is the server's own, which every other test uses")
    python = interpreter(version)
    if not python:
        pytest.skip(f"Python {version} is not installed")
    with running(f"python={python}") as started:
        yield started


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(server.target) as client:
        yield client


async def test_a_program_prints_and_fails_as_python_does(
    request: pytest.FixtureRequest, executor: ExecutorClient
) -> None:
    version = request.node.callspec.params["server"]
    ran = await executor.execute("import sys\nprint('%d.%d' % sys.version_info[:2])")
    assert (ran.outcome, ran.stdout.text) == (Outcome.FINISHED, f"{version}\n"), ran
    failed = await executor.execute(_FAILS)
    assert (failed.outcome, failed.exit_code, failed.stdout.text) == (Outcome.NONZERO_EXIT, 1, "before\n")
    said = failed.stderr.text.splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert said[-1] == "ZeroDivisionError: division by zero"
    assert "    return 1 / x" in said
    exhausted = await executor.execute("def f(): f()\ntry: f()\nexcept RecursionError: print('caught')")
    assert (exhausted.outcome, exhausted.stdout.text) == (Outcome.FINISHED, "caught\n"), exhausted


async def test_a_session_keeps_its_state_and_branches(executor: ExecutorClient) -> None:
    async def shown(session: Session, code: str) -> str:
        return (await session.run(code)).displays[-1].text

    async with executor.session() as session:
        await session.run("x = [1]")
        assert await shown(session, "x") == "[1]"
        (branch,) = await session.branch()
        await branch.run("x.append(2)")
        assert (await shown(session, "x"), await shown(branch, "x")) == ("[1]", "[1, 2]")
        failed = await session.run("1 / 0")
        assert failed.outcome is Outcome.NONZERO_EXIT
        assert "ZeroDivisionError: division by zero" in failed.stderr.text


async def test_an_answer_is_graded(executor: ExecutorClient) -> None:
    calls = await executor.verify(
        "def double(x): return 2 * x", [FunctionCase((2,), 4), FunctionCase((3,), 7)], entry_point="double"
    )
    assert [case.verdict for case in calls.cases] == [Verdict.PASSED, Verdict.WRONG_ANSWER], calls
    asserted = await executor.verify("def double(x): return 2 * x", [AssertCase("assert double('a') == 'aa'")])
    assert [case.verdict for case in asserted.cases] == [Verdict.PASSED], asserted
