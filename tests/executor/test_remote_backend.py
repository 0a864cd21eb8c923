"""An executor whose sandbox is another service: a real executor in front of a real gateway of another one."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from executor_service import (
    Cause,
    ExecutorClient,
    ExecutorUnavailable,
    FileStatus,
    InputFile,
    InvalidRequest,
    IsolationLevel,
    Limits,
    NotOffered,
    Outcome,
    Overloaded,
    Program,
    StdioCase,
)
from executor_service.model import RunRequest
from executor_service.remote.translate import InvalidReply, body_of, facts_of
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import FieldErrors
from fairbox.ports import free_port
from tests.executor.gateways import GatewayServer, gateway
from tests.executor.servers import ROOT, Server, command, processes_with, running, wait_for

LIMITS = Limits(wall_time_s=10, memory_bytes=1 << 30, output_bytes=1 << 20, return_bytes=1 << 20)


@pytest.fixture(scope="module")
def far() -> Iterator[GatewayServer]:
    with gateway("max_concurrent=4", "name=far") as started:
        yield started


@pytest.fixture(scope="module")
def near(far: GatewayServer) -> Iterator[Server]:
    with running("backend=remote", f"sandbox_fusion_url={far.url}/run_code", "name=near") as started:
        yield started


@pytest.fixture
async def executor(near: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(near.target) as client:
        yield client


async def test_a_program_runs_there_and_its_result_comes_back(executor: ExecutorClient) -> None:
    files = [InputFile("a/in", b"\x00\xff")]
    code = """import sys
sum(range(2_000_000))
open("out", "wb").write(open("a/in", "rb").read() * 2)
print(input())
print("e", file=sys.stderr)"""
    asked = ["out", "missing"]
    result = await executor.execute(code, stdin=b"hi\n", files=files, return_paths=asked, request_id="one")
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.FINISHED, Cause.POLICY, 0)
    assert (result.stdout.data, result.stderr.data) == (b"hi\n", b"e\n")
    assert [(file.status, file.content) for file in result.files] == [
        (FileStatus.RETURNED, b"\x00\xff\x00\xff"),
        (FileStatus.MISSING, b""),
    ]
    assert (result.served_by, result.request_id) == ("near", "one")
    assert result.wall_time_s > 0
    assert result.cpu_time_s > 0


async def test_the_isolation_is_what_the_other_end_says(executor: ExecutorClient, near: Server) -> None:
    result = await executor.execute("print(1)")
    assert result.isolation_level is IsolationLevel.NAMESPACES
    status = near.status()
    assert status.isolation_level == pb.ISOLATION_LEVEL_NONE
    assert not any(level.available for level in status.isolation_levels)
    assert [language.name for language in status.languages if language.installed] == ["bash", "python"]


@pytest.mark.parametrize(
    ("code", "limits", "outcome", "exit_code", "signal"),
    [
        ("raise SystemExit(3)", Limits(), Outcome.NONZERO_EXIT, 3, 0),
        ("import os; os.abort()", Limits(), Outcome.SIGNALED, 134, 6),
        ("import time; print('part', flush=True); time.sleep(60)", Limits(wall_time_s=2), Outcome.TIME_LIMIT, 137, 9),
        ("x = bytearray(600 << 20)", Limits(memory_bytes=128 << 20), Outcome.MEMORY_LIMIT, 137, 0),
    ],
)
async def test_a_failure_of_the_program_is_a_result(
    executor: ExecutorClient, code: str, limits: Limits, outcome: Outcome, exit_code: int, signal: int
) -> None:
    result = await executor.execute(code, limits=limits)
    assert (result.outcome, result.cause, result.exit_code, result.signal) == (outcome, Cause.POLICY, exit_code, signal)
    assert result.message or outcome is Outcome.NONZERO_EXIT
    assert result.stdout.data == (b"part\n" if outcome is Outcome.TIME_LIMIT else b"")


async def test_the_same_request_id_runs_once(executor: ExecutorClient, far: GatewayServer) -> None:
    ended = sum(each.count for each in far.server.status().outcomes)
    first = await executor.execute("import os; print(os.urandom(8).hex())", request_id="twice")
    second = await executor.execute("import os; print(os.urandom(8).hex())", request_id="twice")
    assert (first.stdout, second.deduplicated) == (second.stdout, True)
    assert sum(each.count for each in far.server.status().outcomes) == ended + 1


async def test_cancelling_ends_the_program_there(executor: ExecutorClient) -> None:
    code = "import subprocess; subprocess.run(['sleep', '29' + '7.1357'])"
    call = asyncio.create_task(executor.execute(code))
    await asyncio.to_thread(wait_for, lambda: processes_with("297.1357"))
    call.cancel()
    await asyncio.to_thread(wait_for, lambda: not processes_with("297.1357"))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"args": ["a"]}, "args"),
        ({"env": {"A": "b"}}, "env"),
        ({"stdin": b"\xff"}, "stdin"),
        ({"files": [InputFile("a", b"", 0o755)]}, "files[0].mode"),
    ],
)
async def test_what_it_has_no_word_for_is_refused(executor: ExecutorClient, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await executor.execute("print(1)", **fields)
    assert [each.field for each in caught.value.fields] == [field]


async def test_sessions_and_what_needs_them_are_not_offered(executor: ExecutorClient, near: Server) -> None:
    cell = Program(code="1", session_id="near~any")
    calls: list[Callable[[], Awaitable[object]]] = [
        executor.create_session,
        executor.list_sessions,
        lambda: executor.branch_session("near~any", 1),
        lambda: executor.delete_session("near~any"),
        lambda: executor.execute("1", session_id="near~any"),
        lambda: executor.execute("1", display=True),
        lambda: anext(executor.stream(cell)),
        lambda: executor.execute_all(["print(1)", cell]),
    ]
    for call in calls:
        with pytest.raises(NotOffered, match="sessions and displays need a sandbox of this server's own"):
            await call()
    with pytest.raises(NotOffered, match="VerifyCode is not offered"):
        await executor.verify("print(1)", [StdioCase(b"", b"1")])
    assert near.status().running == near.status().queued == 0
    assert (await executor.execute("print(1)")).ok


async def test_the_end_of_the_other_service_is_unavailable_and_the_request_id_free() -> None:
    with gateway() as far:
        url = f"sandbox_fusion_url={far.url}/run_code"
        with running("backend=remote", url) as near:
            async with ExecutorClient(near.target) as executor:
                far.server.process.terminate()
                far.server.process.wait(timeout=60)
                for _ in range(2):
                    with pytest.raises(ExecutorUnavailable, match="can't be reached"):
                        await executor.execute("print(1)", request_id="again")
                assert near.status().deduplicated_total == 0


async def test_an_overload_there_is_an_overload_here() -> None:
    with contextlib.ExitStack() as stack:
        far = stack.enter_context(gateway("max_concurrent=1", "gateway_queue_timeout_s=0.3"))
        url = f"sandbox_fusion_url={far.url}/run_code"
        near = stack.enter_context(running("backend=remote", url, "max_concurrent=4"))
        async with ExecutorClient(near.target) as executor:
            first = asyncio.create_task(executor.execute("import time; time.sleep(300)"))
            await asyncio.to_thread(wait_for, lambda: far.server.status().running == 1)
            with pytest.raises(Overloaded) as caught:
                await executor.execute("print(1)")
            assert caught.value.retry_after_s >= 1
            first.cancel()
            await asyncio.to_thread(wait_for, lambda: far.server.status().running == 0)


@pytest.fixture
async def odd() -> AsyncIterator[tuple[ExecutorClient, list[web.Response | None]]]:
    """An executor before a service that answers what a test tells it to; None: it hangs up."""
    answers: list[web.Response | None] = []
    right = {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "42\n"}}

    async def run_code(request: web.Request) -> web.StreamResponse:
        await request.read()
        if not answers:
            return web.json_response(right)
        answer = answers.pop(0)
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return answer

    application = web.Application()
    application.router.add_post("/run_code", run_code)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    words, target, _ = command("backend=remote", f"sandbox_fusion_url=http://127.0.0.1:{port}/run_code")
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        while b"listening on" not in (line := await process.stderr.readline()):
            assert line, "the server ended"
        async with ExecutorClient(target) as executor:
            yield executor, answers
    finally:
        process.terminate()
        await process.wait()
        await runner.cleanup()


async def test_each_status_of_the_other_service_has_its_type(
    odd: tuple[ExecutorClient, list[web.Response | None]],
) -> None:
    executor, answers = odd
    for status in (429, 503):
        answers[:] = [web.json_response({}, status=status, headers={"Retry-After": "7"})]
        with pytest.raises(Overloaded) as caught:
            await executor.execute("1")
        assert caught.value.retry_after_s == pytest.approx(7)
    for status in (400, 422):
        answers[:] = [web.json_response({"detail": "no such language"}, status=status)]
        with pytest.raises(InvalidRequest, match="no such language"):
            await executor.execute("1")
    for status in (301, 401, 404):
        # The client asks once more by itself; the answer is the same.
        answers[:] = [web.json_response({}, status=status), web.json_response({}, status=status)]
        with pytest.raises(ExecutorUnavailable, match=str(status)):
            await executor.execute("1")


async def test_a_lost_answer_is_ours_and_spends_the_request_id(
    odd: tuple[ExecutorClient, list[web.Response | None]],
) -> None:
    executor, answers = odd
    sandbox_error = {"status": "SandboxError", "message": "no mount"}
    for i, answer in enumerate(
        [
            None,
            web.json_response({"detail": "gateway timeout"}, status=504),
            web.json_response({}, status=500),
            web.json_response(sandbox_error),
            web.json_response([]),
            web.json_response({"status": "Great"}),
            web.json_response({"status": "Success", "run_result": {"status": "Finished", "return_code": 1}}),
            web.Response(text="<html>"),
        ]
    ):
        answers[:] = [answer]
        result = await executor.execute("1", request_id=f"lost-{i}")
        assert (result.outcome, result.cause) == (Outcome.SANDBOX_ERROR, Cause.INFRA)
        assert result.message
        again = await executor.execute("1", request_id=f"lost-{i}")
        assert (again.outcome, again.deduplicated) == (Outcome.SANDBOX_ERROR, True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["backend=remote"], "sandbox_fusion_url is '', which is needed"),
        (["sandbox_fusion_url=http://127.0.0.1:1/run_code"], "which is not used"),
        (["backend=cloud"], "must be sandbox or remote"),
        (["backend=remote", "sandbox_fusion_url=ftp://x/run_code"], "must be like http://HOST:PORT/run_code"),
        (["backend=remote", "sandbox_fusion_url=http://127.0.0.1:1/run_code"], "can't be reached"),
    ],
)
def test_a_remote_sandbox_that_does_not_work_ends_the_server_with_one_sentence(
    settings: list[str], problem: str
) -> None:
    words, _, _ = command(*settings)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert problem in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def request(**fields: Any) -> RunRequest:
    return RunRequest(**{"code": b"1", "language": "python", "limits": LIMITS, **fields})


def test_only_a_memory_limit_that_somebody_chose_is_passed_on() -> None:
    assert body_of(request(), default_memory_bytes=1 << 30)["memory_limit_MB"] == -1
    assert body_of(request(), default_memory_bytes=2 << 30)["memory_limit_MB"] == 1024


def test_all_that_can_not_be_passed_on_is_named_at_once() -> None:
    with pytest.raises(FieldErrors) as caught:
        body_of(request(args=("a",), env={"A": "b"}, stdin=b"\xff"), default_memory_bytes=0)
    assert [error.field for error in caught.value.errors] == ["args", "env", "stdin"]


def finished(**fields: Any) -> dict[str, Any]:
    return {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, **fields}}


def test_output_is_cut_at_the_limit_of_the_request() -> None:
    asked = request(limits=Limits(output_bytes=3))
    output = facts_of(finished(stdout="abcdef"), asked)["stdout"]
    assert (output.data, output.total_bytes, output.truncated) == (b"abc", 6, True)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        {},
        {"status": "Success"},
        finished(stdout=1),
        finished(return_code="0"),
        finished(return_code=None),
        finished(return_code=10**30),
        finished(status="Error"),
        {**finished(), "files": ["a"]},
        {**finished(), "files": {"a": "!"}},
        {**finished(), "status": "Failed"},
        {"status": "Failed", "compile_result": {"status": "Error"}},
    ],
)
def test_a_reply_that_makes_no_sense_is_no_result(reply: object) -> None:
    with pytest.raises(InvalidReply):
        facts_of(reply, request(return_paths=("a",)))


def test_what_a_compiler_says_comes_back() -> None:
    compiled = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": "main.cpp:1: error"}
    facts = facts_of({"status": "Failed", "compile_result": compiled, "run_result": None}, request())
    assert (facts["outcome"], facts["cause"]) == (Outcome.COMPILE_ERROR, Cause.POLICY)
    compilation = facts["compilation"]
    assert (compilation.outcome, compilation.exit_code) == (Outcome.NONZERO_EXIT, 1)
    assert (compilation.stderr.data, facts["message"]) == (b"main.cpp:1: error", "Not run: compiling failed.")


def test_a_number_that_is_none_is_left_out() -> None:
    facts = facts_of(finished(execution_time=float("nan"), cpu_time="x", peak_memory_bytes=-1), request())
    assert (facts["wall_time_s"], facts["cpu_time_s"], facts["peak_memory_bytes"]) == (0, 0, 0)


def test_nobody_vouches_for_the_isolation_of_a_sandbox_that_does_not_say() -> None:
    assert facts_of(finished(), request())["isolation_level"] is IsolationLevel.NONE
