"""Tools with a session for each trajectory, against a real limiter and a real executor: state, ends, losses."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executor_service import ExecutorClient
from rollout.stack import LocalStack
from rollout.tools import BranchRefused, InfraError, Toolbox, ToolCall, ToolOutcome, ToolResponse
from rollout.tools.code import CodeInterpreter, sessions
from rollout.tools.code.bash import BashConfig, BashTool
from tests.executor.repositories import project
from tests.rollout import services
from tests.rollout.services import executor_status, limiter_status, nothing_left

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("roots")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(roots: Path) -> AsyncIterator[LocalStack]:
    # An interrupt is given the time that a loaded machine takes.
    executor = [f"workspace_roots=[{roots}]", "max_sessions=8"]
    async with LocalStack(limiter_args=["buckets.code.max_in_flight=3"], executor_args=executor) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool(stack: LocalStack) -> AsyncIterator[CodeInterpreter]:
    async with interpreter(stack) as tool:
        yield tool


def interpreter(stack: LocalStack, **settings: Any) -> CodeInterpreter:
    return services.interpreter(stack, **{"mode": "session"} | settings)


def shell(stack: LocalStack, **settings: Any) -> BashTool:
    config = BashConfig(**{"default_timeout": 20.0} | settings)
    return BashTool(config, executor=stack.ports.executor, limiter=stack.ports.limiter)


class Trajectory:
    """`async with Trajectory(tool) as t: await t.run(...)`."""

    names = iter(range(10**6))

    def __init__(self, tool: CodeInterpreter | BashTool, **options: Any) -> None:
        self.id = f"trajectory-{next(self.names)}"
        self._tool = tool
        self._options = options

    async def __aenter__(self) -> Trajectory:
        await self._tool.create(self.id, **self._options)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tool.release(self.id)

    async def run(self, code: str, **options: Any) -> ToolResponse:
        (name,) = self._tool.schema.required
        return await self._tool.execute(self.id, {name: code}, **options)


async def said(trajectory: Trajectory, code: str) -> str:
    return (await trajectory.run(code)).text


async def test_calls_of_a_trajectory_share_an_interpreter_and_others_do_not(
    stack: LocalStack, tool: CodeInterpreter
) -> None:
    assert not tool.parallel
    async with Trajectory(tool) as one, Trajectory(tool) as other:
        assert (await executor_status(stack)).sessions == 0  # made at the first call
        assert await said(one, "x = 20\nprint('set')\nx + 1") == "set\n21"
        assert await said(one, "x += 2\nx") == "22"
        assert "NameError" in await said(other, "x")
        assert (await executor_status(stack)).sessions == 2
        async with asyncio.timeout(30):  # sessions that rest hold none
            while (await limiter_status(stack)).buckets[0].held:
                await asyncio.sleep(0.02)
    await nothing_left(stack)


async def test_each_cell_runs_under_a_lease_of_its_own(stack: LocalStack, tool: CodeInterpreter) -> None:
    before = (await limiter_status(stack)).buckets[0].granted_total
    async with Trajectory(tool) as t:
        for number in range(3):
            await t.run(str(number))
    assert (await limiter_status(stack)).buckets[0].granted_total == before + 3


async def test_rich_values_are_text_for_the_model_and_counted(tool: CodeInterpreter) -> None:
    code = """
class Picture:
    def _repr_png_(self): return bytes(1500)
    def __repr__(self): return '<a picture>'
display(Picture())
class Table:
    def _repr_html_(self): return '<b>x</b>'
    def __repr__(self): return 'a table'
Table()
"""
    async with Trajectory(tool) as t:
        response = await t.run(code)
    assert response.text == "<a picture>\na table"
    assert response.unshown == {"image/png": 1500, "text/html": 8}


async def test_cell_that_takes_too_long_is_interrupted_and_the_state_stays(tool: CodeInterpreter) -> None:
    async with Trajectory(tool) as t:
        await t.run("x = 1")
        slow = await t.run("import time\ntime.sleep(60)", time_limit_s=0.5)
        assert slow.outcome is ToolOutcome.TIME_LIMIT
        assert await said(t, "x") == "1"


async def test_interpreter_that_its_own_code_ended_is_replaced_and_the_model_is_told(
    stack: LocalStack, tool: CodeInterpreter
) -> None:
    async with Trajectory(tool) as t:
        await t.run("x = 1")
        died = await t.run("import os; os._exit(3)")
        assert died.outcome is ToolOutcome.PROGRAM_ERROR
        again = await t.run("'x' in globals()")
        assert again.text.startswith("[The previous session ended; this is a new one.")
        assert again.text.endswith("\nFalse")
        assert await said(t, "2") == "2"  # told once
    await nothing_left(stack)


async def test_session_that_the_service_ended_is_infra_and_never_a_fresh_interpreter(
    stack: LocalStack, tool: CodeInterpreter
) -> None:
    async with Trajectory(tool) as t, ExecutorClient(stack.ports.executor) as executor:
        await t.run("x = 1")
        (found,) = await executor.list_sessions(owner=t.id)
        await executor.delete_session(found.session_id)
        for _ in range(2):
            with pytest.raises(InfraError, match="the session is lost"):
                await t.run("1")
        assert await executor.list_sessions(owner=t.id) == []
    await nothing_left(stack)


async def test_idle_session_is_ended_by_the_executor_and_lost(
    stack: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "IDLE_TTL_S", 4.0)
    async with interpreter(stack) as tool, Trajectory(tool) as t:
        await t.run("x = 1")
        await nothing_left(stack)
        with pytest.raises(InfraError, match="the session is lost"):
            await t.run("x")


async def test_session_is_deleted_when_its_trajectory_is_cancelled_while_it_is_made(stack: LocalStack) -> None:
    async with interpreter(stack) as tool:
        for turns in range(8):  # at different moments
            async with Trajectory(tool) as t:
                call = asyncio.ensure_future(t.run("1"))
                for _ in range(turns):
                    await asyncio.sleep(0.002)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
        await nothing_left(stack)


async def test_leaving_the_tool_ends_what_trajectories_have_left(stack: LocalStack) -> None:
    async with interpreter(stack) as tool:
        await tool.create("forgotten")
        await tool.execute("forgotten", {"code": "1"})
        assert (await executor_status(stack)).sessions == 1
    await nothing_left(stack)


async def test_more_sessions_than_the_executor_has_wait_and_then_are_infra(
    stack: LocalStack, tool: CodeInterpreter
) -> None:
    async with AsyncExitStack() as held:
        hurried = await held.enter_async_context(interpreter(stack, queue_timeout=0.5))
        many = [await held.enter_async_context(Trajectory(tool)) for _ in range(9)]
        late = await held.enter_async_context(Trajectory(hurried))
        for each in many[:8]:
            await each.run("1")
        with pytest.raises(InfraError, match="waited for a session"):
            await late.run("1")
        waiting = asyncio.ensure_future(many[8].run("'here'"))
        await asyncio.sleep(0)
        await tool.release(many[0].id)
        assert (await waiting).text == "'here'"
    await nothing_left(stack)


async def test_branches_go_on_from_the_state_of_their_parent(stack: LocalStack, tool: CodeInterpreter) -> None:
    async with Trajectory(tool) as t:
        await t.run("x = [1]")
        await tool.branch(t.id, ["left", "right"])
        assert (await executor_status(stack)).sessions == 3
        for name in ("left", "right"):
            await tool.execute(name, {"code": f"x.append({name!r})"})
        assert (await tool.execute("left", {"code": "x"})).text == "[1, 'left']"
        assert await said(t, "x") == "[1]"
        await t.run("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
        with pytest.raises(BranchRefused, match="thread"):
            await tool.branch(t.id, ["third"])
        for name in ("left", "right"):
            await tool.release(name)
    await nothing_left(stack)


# bash


async def test_bash_shows_both_streams_in_order_and_the_exit_code(stack: LocalStack) -> None:
    for mode in ("program", "session"):
        async with shell(stack, mode=mode) as tool, Trajectory(tool) as t:
            response = await t.run("echo one; echo two >&2; echo three; exit 3")
            assert (response.text, response.outcome) == ("one\ntwo\nthree\n[exit code 3]", ToolOutcome.PROGRAM_ERROR)
            assert await said(t, "true") == "[no output]"
            assert (await said(t, "kill -9 $$")).endswith(("[ended by signal 9]", "[exit code 137]"))
            assert "syntax error" in await said(t, "if")
            long = await t.run("seq 100000")
            assert (long.truncated, long.total_bytes) == (True, 588895)
            assert "[... cut: 588895 bytes in all ...]" in long.text


async def test_bash_session_keeps_files_and_the_current_folder(stack: LocalStack) -> None:
    async with shell(stack, mode="session") as tool, Trajectory(tool) as t:
        assert await said(t, "mkdir -p a/b && cd a/b && echo 1 > f; exit 4") == "[exit code 4]"
        assert await said(t, "pwd; cat f") == "/sandbox/a/b\n1"
        await tool.branch(t.id, ["branch"])
        assert (await tool.execute("branch", {"command": "cat f; echo 2 > f"})).text == "1"
        assert await said(t, "cat f") == "1"
        slow = await t.run("(sleep 60; echo never) & sleep 60", time_limit_s=0.5)
        assert (slow.outcome, "Traceback" in slow.text) == (ToolOutcome.TIME_LIMIT, False)
        assert await said(t, "cat f") == "1"
        await tool.release("branch")
        await t.run("kill -9 $PPID")  # the interpreter that waits for it
        again = await said(t, "cat f")
        assert again.startswith("[The previous session ended; this is a new one.")
        assert again.endswith("cat: f: No such file or directory\n[exit code 1]")
    await nothing_left(stack)


async def test_bash_shell_keeps_everything_and_says_when_it_is_another(stack: LocalStack) -> None:
    async with shell(stack, mode="shell") as tool, Trajectory(tool) as t:
        assert await said(t, "mkdir a && cd a; x=5; f() { echo f $x; }; echo 1 > ../f; echo two >&2; false") == (
            "two\n[exit code 1]"
        )
        assert await said(t, "echo $?; f; pwd") == "1\nf 5\n/sandbox/a"
        slow = await t.run("(sleep 60; echo never) & sleep 60", time_limit_s=0.5)
        assert slow.outcome is ToolOutcome.TIME_LIMIT
        assert "syntax error" in await said(t, "if")
        with pytest.raises(BranchRefused, match="it is a shell"):
            await tool.branch(t.id, ["branch"])
        assert await said(t, "echo bye; exit 3") == (
            "bye\nexit\n[exit code 3]\n"
            "[The shell exited with code 3. The session goes on with a new one: files stay, variables are gone.]"
        )
        assert await said(t, "echo ${x-gone}; pwd; cat f; echo err >&2") == "gone\n/sandbox\n1\nerr"
        stubborn = await t.run("trap '' INT; sleep 60", time_limit_s=0.5)
        assert stubborn.outcome is ToolOutcome.TIME_LIMIT
        assert (await said(t, "true")).startswith("[The previous session ended; this is a new one.")
    await nothing_left(stack)


async def test_bash_works_in_the_tasks_workspace(stack: LocalStack, roots: Path) -> None:
    source, commit = project(roots / "project")
    workspace = {"local_path": str(source), "commit": commit}
    async with shell(stack) as tool, Trajectory(tool, workspace=workspace) as t:
        box = Toolbox([tool], max_parallel_calls=5)
        commands = ["pwd", "git log --format=%an", "echo 1 > new; ls new", "ls new"]
        calls = [ToolCall("bash", {"command": command}, "") for command in commands]
        texts = [each.text for each in await box.answer(t.id, calls, run=4, time_limit_s=None)]
        assert texts[:3] == ["/testbed", "fairbox", "new"]
        assert "No such file" in texts[3]  # what a command writes, no other command sees
        await tool.branch(t.id, ["in-workspace"])
        assert (await tool.execute("in-workspace", {"command": "pwd"})).text == "/testbed"
        await tool.release("in-workspace")
    async with shell(stack, mode="session") as tool, Trajectory(tool, workspace=workspace) as t:
        assert await said(t, "pwd; echo 1 > new") == "/testbed"
        assert await said(t, "cat new") == "1"
        await tool.branch(t.id, ["in-workspace"])
        assert (await tool.execute("in-workspace", {"command": "cat new; echo 2 > new"})).text == "1"
        assert await said(t, "cat new") == "1"
        await tool.release("in-workspace")
    async with shell(stack, mode="shell") as tool, Trajectory(tool, workspace=workspace) as t:
        assert await said(t, "pwd; echo 1 > new") == "/testbed"
        assert await said(t, "cat new") == "1"
    await nothing_left(stack)


@pytest.mark.parametrize("image", [5, "with a workspace"])
async def test_image_that_can_not_be_is_not_the_models_fault(stack: LocalStack, image: Any) -> None:
    async with shell(stack) as tool:
        with pytest.raises(InfraError, match=r"the task's image is .*, must be a name"):
            await tool.create("t", image=image, workspace={"local_path": "/srv", "commit": "main"})


@pytest.mark.parametrize(
    ("workspace", "problem"),
    [
        ("/srv", "is '/srv', must be a mapping"),
        ({"path": "/srv"}, "has 'path', which is none of local_path"),
        ({"commit": "main"}, "must have one source"),
        ({"local_path": "/nowhere", "commit": "main"}, "can't be prepared"),
    ],
)
async def test_workspace_that_can_not_be_is_not_the_models_fault(
    stack: LocalStack, workspace: Any, problem: str
) -> None:
    async with shell(stack) as tool:
        with pytest.raises(InfraError, match=problem):
            await tool.create("t", workspace=workspace)


@pytest.mark.parametrize("command", ["", "echo \0", "echo \ud800", "echo " + "x" * 100_000])
async def test_text_that_is_no_command_is_the_models_fault(stack: LocalStack, command: str) -> None:
    async with shell(stack) as tool, Trajectory(tool) as t:
        response = await t.run(command)
    assert (response.outcome, response.text[:28]) == (ToolOutcome.BAD_ARGUMENTS, 'Error: the argument "command')


async def test_executor_that_dies_loses_the_sessions(stack: LocalStack) -> None:
    """The last one here, because it ends the executor that all of them share."""
    async with interpreter(stack, queue_timeout=20.0) as tool, Trajectory(tool) as t:
        await t.run("x = 1")
        os.kill(stack.pid("executor_service"), signal.SIGKILL)
        with pytest.raises(InfraError, match="the session is lost"):
            await asyncio.wait_for(t.run("x"), 60)
        with pytest.raises(InfraError, match="the session is lost"):
            await t.run("x")
