"""Programs see their interpreter and its packages wherever these lie, also below /tmp, which is the program's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from executor_service import ExecutorClient, Outcome
from tests.executor.servers import Server, running

LOOKS = """
import os, sys, tempfile, marked
temporary = tempfile.gettempdir()
print(sys.prefix, marked.__file__, sys.executable)
print(os.path.exists(temporary + "/left"))
for attempt in (
    lambda: open(marked.__file__, "w"),
    lambda: open(sys.prefix + "/new", "w"),
    lambda: os.rename(sys.prefix, sys.prefix + "-moved"),
    lambda: os.rmdir(sys.prefix),
):
    try: attempt()
    except OSError as error: pass
    else: print("done")
open(temporary + "/left", "w").write("x")
for number in range(3, 100):
    try: os.fstat(number)
    except OSError: pass
    else: print(number, "is open")
"""


@pytest.fixture(scope="module")
def environment() -> Iterator[Path]:
    """A virtual environment below /tmp with a package of its own, which everybody may read."""
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
        (site,) = (folder / "lib").glob("python3*/site-packages")
        (site / "marked.py").write_text("")
        yield folder


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def server(request: pytest.FixtureRequest, environment: Path) -> Iterator[Server]:
    with running(f"python={environment}/bin/python", f"isolation={request.param}", "min_isolation=landlock") as started:
        yield started


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(server.target) as client:
        yield client


async def test_an_interpreter_below_tmp_is_seen_and_can_not_be_changed(
    executor: ExecutorClient, environment: Path
) -> None:
    for _ in range(3):  # the second finds what the first has left neither there nor in the way
        ran = await executor.execute(LOOKS)
        assert (ran.outcome, ran.stderr.text) == (Outcome.FINISHED, ""), ran
        where, left, *more = ran.stdout.text.splitlines()
        prefix, module, executable = where.split()
        assert prefix == str(environment)
        assert Path(module).is_relative_to(environment)
        assert Path(executable).is_relative_to(environment)
        assert (left, more) == ("False", [])
    assert not (environment / "new").exists()


async def test_other_folders_of_tmp_are_not(executor: ExecutorClient, environment: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/tmp") as beside:
        beside.write("secret")
        beside.flush()
        ran = await executor.execute(f"print(open({beside.name!r}).read())")
    assert ran.outcome is Outcome.NONZERO_EXIT
    assert "secret" not in ran.stdout.text


async def test_sessions_and_their_branches_have_it_too(executor: ExecutorClient) -> None:
    async with executor.session() as session:
        assert (await session.run("import marked; x = 1")).outcome is Outcome.FINISHED
        (branch,) = await session.branch()
        async with branch:
            ran = await branch.run("import importlib; importlib.reload(marked); print(x)")
            assert ran.stdout.text == "1\n", ran
