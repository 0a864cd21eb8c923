"""`fairbox mcp`: MCP's own client calls the tools, which run in a real sandbox."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, ImageContent, TextContent

from executor_service import ExecutorClient
from fairbox.net.ports import free_ports
from rollout.interop.mcp import SandboxTools, open_server
from rollout.stack import LocalStack
from tests.rollout.harbor.folders import add_image, plain_layers
from tests.rollout.services import executor_status, nothing_left

pytestmark = [pytest.mark.timeout(200), pytest.mark.asyncio(loop_scope="module")]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = f"""
import base64
class Picture:
    def _repr_png_(self):
        return base64.b64decode({PIXEL!r})
Picture()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    store = tmp_path_factory.mktemp("mcp") / "store"
    add_image(store, "plain", plain_layers())
    async with LocalStack(executor_args=[f"image_dir={store}"]) as stack:
        yield stack


@asynccontextmanager
async def agent_of(stack: LocalStack, image: str = "") -> AsyncIterator[Client]:
    async with (
        ExecutorClient(stack.ports.executor) as executor,
        open_server(executor, image=image) as server,
        Client(server) as client,
    ):
        yield client
    await nothing_left(stack)


def text(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def call(agent: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Structured content of a call that is no error, with its text as `said`."""
    result = await agent.call_tool(tool, arguments)
    assert not result.is_error, result
    return {"said": text(result), **(result.structured_content or {})}


async def refusal(agent: Client, tool: str, **arguments: Any) -> str:
    result = await agent.call_tool(tool, arguments)
    assert result.is_error, result
    return text(result)


async def test_a_program_runs_and_its_failure_is_an_answer(stack: LocalStack) -> None:
    async with agent_of(stack) as agent:
        assert {tool.name for tool in (await agent.list_tools()).tools} == {
            *("run_code", "open_session", "close_session", "write_file", "read_file")
        }
        ran = await call(agent, "run_code", code="print(6 * 7)")
        assert (ran["said"], ran["outcome"], ran["exit_code"]) == ("42", "FINISHED", 0)
        ran = await call(agent, "run_code", code="read line; echo $line; exit 3", language="bash", stdin="hello")
        assert (ran["said"], ran["outcome"], ran["exit_code"]) == ("hello\n[exit code 3]", "NONZERO_EXIT", 3)
        ran = await call(agent, "run_code", code="while True: pass", timeout_s=0.2)
        assert (ran["said"], ran["outcome"]) == ("[Killed: the program ran for longer than 0.2 s.]", "TIME_LIMIT")
        ran = await call(agent, "run_code", code="print('x' * 100_000)")
        assert ran["truncated"]
        assert len(ran["said"]) < 21_000


async def test_files_go_in_and_come_out_as_text_or_as_base64(stack: LocalStack) -> None:
    async with agent_of(stack) as agent:
        files = [{"path": "a.txt", "text": "héllo"}, {"path": "b", "base64": base64.b64encode(b"\xff\0").decode()}]
        code = "import shutil; shutil.copy('a.txt', 'c.txt'); shutil.copy('b', 'd')"
        ran = await call(agent, "run_code", code=code, files=files, return_paths=["c.txt", "d", "none"])
        assert ran["files"] == [
            {"path": "c.txt", "text": "héllo", "base64": ""},
            {"path": "d", "text": "", "base64": base64.b64encode(b"\xff\0").decode()},
        ]
        assert ran["missing"] == {"none": "missing"}
        both = await refusal(agent, "run_code", code="1", files=[{"path": "a", "text": "x", "base64": "eA=="}])
        assert "a: has text and base64, must have one of them" in both
        assert "a: its base64 is none" in await refusal(
            agent, "run_code", code="1", files=[{"path": "a", "base64": "?"}]
        )


@pytest.mark.parametrize(
    ("language", "first", "second"), [("python", "x = 41", "print(x + 1)"), ("bash", "x=41; cd /", "echo $((x + 1))")]
)
async def test_a_session_keeps_its_state(stack: LocalStack, language: str, first: str, second: str) -> None:
    async with agent_of(stack) as agent:
        session = (await call(agent, "open_session", language=language))["session_id"]
        await call(agent, "write_file", session_id=session, file={"path": "a.txt", "text": "hello"})
        await call(agent, "run_code", session_id=session, code=first)
        assert (await call(agent, "run_code", session_id=session, code=second))["said"] == "42"
        assert (await call(agent, "read_file", session_id=session, path="a.txt"))["text"] == "hello"
        assert "b.txt: missing" in await refusal(agent, "read_file", session_id=session, path="b.txt")
        assert f"the session's is '{language}'" in await refusal(
            agent, "run_code", session_id=session, code="1", language="cpp"
        )
        assert (await call(agent, "close_session", session_id=session))["said"] == "It has ended."
        assert (await call(agent, "close_session", session_id=session))["said"] == "It had ended before."
        gone = await refusal(agent, "run_code", session_id=session, code=second)
        assert "its variables and files are gone: open another one" in gone


async def test_programs_and_shells_run_in_the_image_that_it_was_given(stack: LocalStack) -> None:
    if not (await executor_status(stack)).HasField("images"):
        pytest.skip("nothing is mounted at this level")
    async with agent_of(stack, image="plain") as agent:
        session = (await call(agent, "open_session", language="bash"))["session_id"]
        seen = "cat /app/README"
        assert (await call(agent, "run_code", code=seen, language="bash"))["said"] == "An empty folder."
        assert (await call(agent, "run_code", code=seen, session_id=session))["said"] == "An empty folder."


async def test_pictures_are_shown(stack: LocalStack) -> None:
    async with agent_of(stack) as agent:
        session = (await call(agent, "open_session"))["session_id"]
        result = await agent.call_tool("run_code", {"session_id": session, "code": PICTURE})
        assert isinstance(result.content[1], ImageContent)
        assert (result.content[1].data, result.content[1].mime_type) == (PIXEL, "image/png")


async def test_what_can_not_be_done_is_an_error_in_a_sentence(stack: LocalStack) -> None:
    async with agent_of(stack) as agent:
        assert "language is 'klingon', must be one of" in await refusal(agent, "run_code", code="x", language="klingon")
        assert "code is empty" in await refusal(agent, "run_code", code="")
        for session in ("nonsense", "python:", "ruby:x"):
            assert "must be what open_session gave" in await refusal(agent, "run_code", code="1", session_id=session)
    (port,) = free_ports(1)
    async with (
        ExecutorClient(f"127.0.0.1:{port}") as executor,
        open_server(executor) as server,
        Client(server) as client,
    ):
        assert "refused" in await refusal(client, "run_code", code="1")


async def test_a_cancelled_call_kills_its_program(stack: LocalStack) -> None:
    async with agent_of(stack) as agent:
        running = asyncio.ensure_future(agent.call_tool("run_code", {"code": "import time; time.sleep(60)"}))
        async with asyncio.timeout(30):
            while (await executor_status(stack)).running == 0:
                await asyncio.sleep(0.05)
        running.cancel()
        await nothing_left(stack)


async def test_sessions_end_with_the_server(stack: LocalStack) -> None:
    async with ExecutorClient(stack.ports.executor) as executor:
        tools = SandboxTools(executor)
        for _ in range(3):
            await tools.open_session()
        assert (await executor_status(stack)).sessions == 3
        await tools.close()
    await nothing_left(stack)


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rollout.cli", "mcp", *words]


async def test_an_agent_starts_it_and_speaks_over_its_pipes(stack: LocalStack) -> None:
    program, *words = command(f"executor={stack.ports.executor}")
    async with Client(stdio_client(StdioServerParameters(command=program, args=words))) as agent:
        assert (await call(agent, "run_code", code="print(6 * 7)"))["said"] == "42"
        await call(agent, "open_session")
        assert (await executor_status(stack)).sessions == 1
    await nothing_left(stack)


async def test_two_agents_share_it_over_http(stack: LocalStack) -> None:
    (port,) = free_ports(1)
    words = command(f"executor={stack.ports.executor}", f"http=127.0.0.1:{port}")
    server = await asyncio.create_subprocess_exec(*words)
    try:
        async with AsyncExitStack() as agents:
            first, second = [await agents.enter_async_context(await reached(port)) for _ in range(2)]
            session = (await call(first, "open_session"))["session_id"]
            await call(first, "run_code", session_id=session, code="x = 1")
            assert (await call(second, "run_code", code="print(6 * 7)"))["said"] == "42"
            assert (await call(first, "run_code", session_id=session, code="print(x)"))["said"] == "1"
        server.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(server.wait(), 30) == 0
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    await nothing_left(stack)


async def reached(port: int) -> Client:
    async with asyncio.timeout(60):
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                return Client(f"http://127.0.0.1:{port}/mcp")
            except OSError:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_though_its_agent_says_nothing(stack: LocalStack, number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *command(f"executor={stack.ports.executor}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    assert await asyncio.wait_for(process.stdout.readline(), 60)
    process.send_signal(number)
    assert await asyncio.wait_for(process.wait(), 30) == (0 if number is signal.SIGTERM else 130)


@pytest.mark.parametrize("address", ["0.0.0.0:8000", "example.org:80", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"])
async def test_it_listens_on_loopback_alone(address: str, tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command(f"http={address}"), cwd=tmp_path, stderr=pipe)
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert f"http is '{address}', must be one of 127.0.0.1, localhost, ::1, a colon and a port" in said.decode()
    assert said.count(b"\n") == 1
