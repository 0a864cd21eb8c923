"""Notebooks whose kernel is a session: Jupyter's own clients, and the kernel as people install it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel", reason="ipykernel is not installed: make test-interop")

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from executor_service import ExecutorClient
from tests.executor.servers import Server, running

pytestmark = pytest.mark.jupyter


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def install(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lists the kernel with these options, for this test alone."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))

    def listed(*options: str, target: str = server.target) -> None:
        command = [sys.executable, "-m", "fairbox_jupyter", "install", f"--prefix={tmp_path}", "--"]
        subprocess.run([*command, f"--FairboxKernel.target={target}", *options], check=True, timeout=60)

    return listed


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])


async def played(*cells: str) -> list[list[Any]]:
    """Outputs of each cell."""
    client = NotebookClient(notebook(*cells), kernel_name="fairbox", timeout=60, allow_errors=True)
    return [cell["outputs"] for cell in (await client.async_execute())["cells"]]


@asynccontextmanager
async def kernel() -> AsyncIterator[tuple[AsyncKernelManager, Any]]:
    manager = AsyncKernelManager(kernel_name="fairbox")
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel()


async def sessions(server: Server) -> int:
    async with ExecutorClient(server.target) as client:
        return len(await client.list_sessions(owner="jupyter"))


async def test_a_notebook_runs_in_one_session_that_goes_with_it(install: Any, server: Server) -> None:
    install()
    first, second, third = await played(
        "x = 6\nprint('x is', x)", "import sys\nprint('!', file=sys.stderr)\nx * 7", "display(1); 2"
    )
    assert [(each["name"], each["text"]) for each in first] == [("stdout", "x is 6\n")]
    assert (second[0]["name"], second[0]["text"]) == ("stderr", "!\n")
    assert second[1]["data"] == {"text/plain": "42"}
    assert [each["data"]["text/plain"] for each in third] == ["1", "2"]
    assert await sessions(server) == 0


async def test_an_error_of_the_code_stops_a_notebook(install: Any) -> None:
    install()
    with pytest.raises(CellExecutionError) as caught:
        await NotebookClient(notebook("1 / 0", "open('never')"), kernel_name="fairbox", timeout=60).async_execute()
    assert (caught.value.ename, caught.value.evalue) == ("ZeroDivisionError", "division by zero")
    assert 'File "<cell 1>", line 1' in caught.value.traceback


async def test_an_interpreter_that_ended_is_said_and_replaced(install: Any) -> None:
    install()
    ended, lost, new = await played("x = 1; import os; os._exit(3)", "x", "'x' in globals()")
    assert "error" in {each["output_type"] for each in ended}
    assert (lost[0]["ename"], "variables are lost" in "".join(lost[0]["traceback"])) == ("SessionLost", True)
    assert new[0]["data"]["text/plain"] == "False"


async def test_a_limit_is_an_error_by_its_name(install: Any) -> None:
    install("--FairboxKernel.limits={'wall_time_s': 0.5}")
    late, after = await played("x = 1\nimport time; time.sleep(60)", "x")
    assert late[-1]["ename"] == "TIME_LIMIT"
    assert after[0]["data"]["text/plain"] == "1"


@pytest.mark.parametrize("wrong", ["{'memory': 1}", "{'wall_time_s': 'long'}"])
def test_wrong_limits_are_named(install: Any, tmp_path: Path, wrong: str) -> None:
    install()
    command = [sys.executable, "-m", "fairbox_jupyter", "-f", str(tmp_path / "c.json")]
    ended = subprocess.run(
        [*command, f"--FairboxKernel.limits={wrong}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode
    assert f"FairboxKernel.limits has {wrong}; there are wall_time_s, " in ended.stderr


async def test_an_executor_that_is_away_is_no_error_of_the_code(install: Any) -> None:
    install(target="127.0.0.1:9")
    ((error,),) = await played("1 / 0")
    assert error["ename"] == "ExecutorUnavailable"
    assert "127.0.0.1:9" in error["evalue"]


@pytest.mark.parametrize("html", [False, True])
async def test_scripts_reach_the_page_only_where_somebody_says_so(install: Any, html: bool) -> None:
    install(f"--FairboxKernel.html={html}")
    forms = ("_repr_html_", "_repr_svg_", "_repr_javascript_", "_repr_png_", "_repr_latex_")
    methods = "\n".join(f"    def {name}(self): return {b'x' if 'png' in name else '<script>'!r}" for name in forms)
    ((shown,),) = await played(f"class Page:\n{methods}\nPage()")
    still = {"text/plain", "image/png", "text/latex"}
    assert set(shown["data"]) == still | ({"text/html", "image/svg+xml", "application/javascript"} if html else set())
    assert shown["data"]["image/png"].strip() == "eA=="


async def test_an_interrupt_ends_the_cell_and_keeps_the_variables(install: Any, server: Server) -> None:
    install()
    async with kernel() as (manager, client):
        replies = []
        for code in ("x = 1", "import time; time.sleep(60)", "x"):
            asked = client.execute(code)
            if "sleep" in code:
                await asyncio.sleep(1)
                await manager.interrupt_kernel()
            while (reply := await client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != asked:
                pass
            replies.append(reply["content"])
        assert [each["status"] for each in replies] == ["ok", "error", "ok"]
        assert replies[1]["ename"] == "KeyboardInterrupt"
        assert await sessions(server) == 1
        await manager.restart_kernel()
        await client.wait_for_ready(timeout=60)
        assert await sessions(server) == 0
        reply = await client.execute_interactive("x", timeout=60)
        assert reply["content"]["ename"] == "NameError"
    assert await sessions(server) == 0
