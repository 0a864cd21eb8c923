"""Commands beside a shell: several at once, what they share and what ends with them, and what they refuse."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    OutputChunk,
    Program,
    Session,
    SessionBusy,
    SessionNotFound,
)
from tests.executor.levels import EXTREMES, LEVELS, Level
from tests.executor.servers import Server, processes_with, wait_for
from tests.executor.sessions.conftest import quiet

MOUNTING = [each for each in EXTREMES if not each.values[0].landlock]
MOST = 16
MARK = f"{os.getpid():08d}5"
"""Decimals of seconds that no other test process sleeps for."""
SERVE = """python3 -c '
import http.server
http.server.test(http.server.SimpleHTTPRequestHandler, http.server.HTTPServer, port=8000, bind="127.0.0.1")' &
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))' 2> /dev/null && exit; sleep 0.2
done; exit 1"""
FETCH = """python3 -c '
import urllib.request
for _ in range(3): print(urllib.request.urlopen("http://127.0.0.1:8000/served").read().decode())'"""


@pytest.fixture(scope="session", params=MOUNTING)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="session")
def server(level: Level) -> Iterator[Server]:
    with level.running("max_concurrent=24", "max_queued=500") as started:
        yield started


@pytest.fixture
async def shell(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(language="bash", limits=Limits(wall_time_s=20, processes=128)) as made:
        yield made


async def beside(session: Session, command: str, **options: object) -> ExecutionResult:
    return await session.run(command, beside=True, **options)  # type: ignore[arg-type]


async def said(session: Session, command: str, **options: object) -> str:
    """Output of a command beside the shell that succeeds."""
    result = await beside(session, command, **options)
    assert (result.outcome, result.exit_code) == (Outcome.FINISHED, 0), (result, result.stderr.text)
    return result.stdout.text


async def test_it_runs_while_the_shell_and_others_do(shell: Session) -> None:
    running = asyncio.create_task(shell.run("mkfifo pipe; cat pipe; echo ended"))
    waiting = [
        asyncio.create_task(beside(shell, f"while [ ! -e go ]; do sleep 0.05; done; exit {n}")) for n in range(4)
    ]
    while "pipe" not in await said(shell, "ls"):
        pass
    assert (await said(shell, "touch go; echo from-beside > pipe")) == ""
    assert (await running).stdout.text == "from-beside\nended\n"
    assert [(await each).exit_code for each in waiting] == [0, 1, 2, 3]
    assert (await shell.run("echo $?; ls")).cell == 2  # they are no cells
    assert (await beside(shell, "true")).cell == 0


async def test_it_shares_files_processes_and_loopback_and_no_variables(shell: Session) -> None:
    await shell.run("x=5; export Y=6; cd /tmp; echo served > $HOME/served; sleep 4343.5 & echo $! > $HOME/pid")
    assert await said(shell, "echo ${x-none} ${Y-none} $Z; pwd; cat served; echo $0", env={"Z": "7"}) == (
        f"none none 7\n{(await said(shell, 'pwd')).strip()}\nserved\nbash\n"
    )
    assert await said(shell, "kill $(cat pid)") == ""
    await said(shell, SERVE)
    assert await said(shell, FETCH) == "served\n\n" * 3  # which writes to a stream that nobody reads any more
    assert (await shell.run(FETCH)).stdout.text == "served\n\n" * 3


async def test_input_files_and_streams(executor: ExecutorClient, shell: Session) -> None:
    for stdin in (b"first\nrest", b"", b"\0" * 3_000_000):
        result = await beside(
            shell, "cat > out; wc -c < deep/in", stdin=stdin, files=[InputFile("deep/in", b"123")], return_paths=["out"]
        )
        assert (result.files[0].content, result.stdout.text) == (stdin, "3\n")
    program = Program(
        code="echo one; sleep 0.3; echo two >&2", language="bash", session_id=shell.session_id, beside=True
    )
    events = [event async for event in executor.stream(program)]
    assert [each.data for each in events if isinstance(each, OutputChunk)] == [b"one\n", b"two\n"]
    assert isinstance(events[-1], ExecutionResult)


@pytest.mark.parametrize(
    ("command", "code", "out"),
    [("false", 1, ""), ("exit 7", 7, ""), ("no-such-program", 127, ""), ("kill -9 $$", 137, ""), ("echo a; (", 2, "")],
)
async def test_it_ends_as_a_process_does(shell: Session, command: str, code: int, out: str) -> None:
    result = await beside(shell, command)
    assert (result.outcome, result.exit_code, result.stdout.text) == (Outcome.NONZERO_EXIT, code, out)


async def test_at_its_time_all_that_it_started_is_killed(shell: Session) -> None:
    command = f"sleep 4444.{MARK} & setsid sleep 4445.{MARK} & (setsid sleep 4446.{MARK} &); sleep 4447.{MARK}"
    kept = asyncio.create_task(beside(shell, "sleep 3; echo kept"))
    result = await beside(shell, command, timeout=1.0)
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.TIME_LIMIT, Cause.POLICY, 137)
    assert result.message == "Killed: the program ran for longer than 1 s."
    await asyncio.to_thread(wait_for, lambda: not any(processes_with(f"444{n}.{MARK}") for n in range(4, 8)))
    assert (await kept).stdout.text == "kept\n"
    assert (await shell.run("echo lives")).stdout.text == "lives\n"


async def test_a_caller_that_leaves_ends_it(shell: Session) -> None:
    running = asyncio.create_task(beside(shell, f"setsid sleep 4545.{MARK} & sleep 4546.{MARK}"))
    while not processes_with(f"4545.{MARK}") or not processes_with(f"4546.{MARK}"):
        await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.wait([running])
    await asyncio.to_thread(wait_for, lambda: not processes_with(f"4545.{MARK}") and not processes_with(f"4546.{MARK}"))
    assert await said(shell, "echo lives") == "lives\n"


async def test_what_it_leaves_goes_on_until_the_session_ends(executor: ExecutorClient) -> None:
    async with executor.session(language="bash") as shell:
        began = time.monotonic()
        await said(shell, f"setsid sleep 4646.{MARK} & sleep 4647.{MARK} & true")
        assert time.monotonic() - began < 15
        wait_for(lambda: processes_with(f"4646.{MARK}") and processes_with(f"4647.{MARK}"))  # also while they exec
    wait_for(lambda: not processes_with(f"4646.{MARK}") and not processes_with(f"4647.{MARK}"))


async def test_output_is_cut_and_floods_are_killed(shell: Session) -> None:
    result = await beside(shell, "head -c 300000 /dev/zero", limits=Limits(output_bytes=1000))
    assert (len(result.stdout.data), result.stdout.total_bytes, result.stdout.truncated) == (1000, 300_000, True)
    result = await beside(shell, "cat /dev/zero", limits=Limits(output_bytes=1000))
    assert result.outcome is Outcome.OUTPUT_LIMIT
    await said(shell, "cat /dev/zero & true")  # of which nobody reads more than a flood
    assert (await shell.run("echo lives")).stdout.text == "lives\n"


async def test_limits_of_the_session_are_those_of_all(executor: ExecutorClient) -> None:
    async with executor.session(language="bash", limits=Limits(memory_bytes=64 << 20, wall_time_s=60)) as shell:
        other = asyncio.create_task(beside(shell, f"sleep 4949.{MARK}"))
        await asyncio.to_thread(wait_for, lambda: processes_with(f"4949.{MARK}"))
        result = await beside(shell, "x=$(head -c 200000000 /dev/zero | tr '\\0' a); echo ${#x}")
        assert result.outcome is Outcome.MEMORY_LIMIT
        assert (await other).outcome is Outcome.MEMORY_LIMIT
        with pytest.raises(SessionNotFound, match="was killed for its memory limit"):
            await beside(shell, "true")
    async with executor.session(language="bash", limits=Limits(cpu_time_s=1, wall_time_s=60)) as shell:
        assert (await beside(shell, "while :; do :; done")).outcome is Outcome.CPU_LIMIT


async def test_a_service_may_write_on_when_many_commands_have_come_after_it(shell: Session) -> None:
    write = "while sleep 0.1; do echo line || exit; touch wrote; done"
    await said(shell, f"{write} &")
    for _ in range(2 * MOST):
        await said(shell, "true")
    await said(shell, "rm -f wrote; until [ -e wrote ]; do sleep 0.1; done")


async def test_so_many_run_at_once_and_no_more(shell: Session) -> None:
    waits = "while [ ! -e go ]; do sleep 1; done"  # seldom, and for long: all are to run at once on a slow machine too
    running = [asyncio.create_task(beside(shell, waits, timeout=300)) for _ in range(MOST)]
    while len(await shells(shell)) < MOST:
        await asyncio.sleep(0.1)
    with pytest.raises(SessionBusy, match=f"runs {MOST} commands beside its shell already"):
        await beside(shell, "true")
    await shell.run("touch go")
    assert {(await each).outcome for each in running} == {Outcome.FINISHED}
    await said(shell, "true")


async def shells(session: Session) -> list[str]:
    """Processes that wait for a file, as the shell itself sees them."""
    command = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2> /dev/null | grep '^bash -c while'"
    return (await session.run(command)).stdout.text.splitlines()


async def test_a_session_that_is_deleted_takes_them_along(
    executor: ExecutorClient, server: Server, level: Level
) -> None:
    info = await executor.create_session(language="bash")
    run = executor.execute(f"sleep 4848.{MARK}", language="bash", session_id=info.session_id, beside=True)
    running = asyncio.create_task(run)
    while not processes_with(f"4848.{MARK}"):
        await asyncio.sleep(0.1)
    (seen,) = [each for each in await executor.list_sessions() if each.session_id == info.session_id]
    assert (seen.busy, seen.idle_s) == (True, 0.0)
    await executor.delete_session(info.session_id)
    assert not processes_with(f"4848.{MARK}")
    result = await running
    assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA)
    assert result.message == "The session was deleted."
    wait_for(lambda: quiet(server, level))


async def test_whenever_a_session_is_deleted_its_commands_say_so(executor: ExecutorClient) -> None:
    found = set[tuple[str, Cause]]()
    for pause in range(24):
        info = await executor.create_session(language="bash")
        run = executor.execute("sleep 60", language="bash", session_id=info.session_id, beside=True)
        running = asyncio.create_task(run)
        await asyncio.sleep(pause / 2000)
        await executor.delete_session(info.session_id)
        try:
            result = await running
            found.add((result.message, result.cause))
        except SessionNotFound as error:
            found.add((str(error).partition(repr(info.session_id))[2], error.cause))
    assert found <= {("The session was deleted.", Cause.INFRA), (" was deleted", Cause.INFRA)}


async def test_one_whose_shell_is_killed_says_so(shell: Session) -> None:
    interpreter = (await shell.run("echo $PPID")).stdout.text.strip()
    result = await beside(shell, f"sleep 1; kill -9 {interpreter}; sleep 60")
    assert (result.outcome, result.cause) == (Outcome.SIGNALED, Cause.POLICY)
    assert "The session ended: its interpreter was ended by signal 9." in result.message
    with pytest.raises(SessionNotFound):
        await beside(shell, "true")


async def test_one_that_kills_what_runs_it_is_its_own_doing(shell: Session) -> None:
    result = await beside(shell, "kill -9 $PPID; sleep 60")
    assert (result.outcome, result.cause, result.signal) == (Outcome.SIGNALED, Cause.POLICY, 9)
    assert await said(shell, "echo lives") == "lives\n"


async def test_what_kills_commands_as_they_begin_is_no_fault_of_ours(shell: Session) -> None:
    hunt = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p -gt $$ ] && kill -9 $p; done 2> /dev/null"
    await shell.run(f"setsid bash -c 'for n in {{1..9}}; do sleep 0.1; done; while :; do {hunt}; done' &")
    results = [await beside(shell, "sleep 0.2") for _ in range(30)]
    assert {result.cause for result in results} == {Cause.POLICY}
    assert Outcome.SIGNALED in {result.outcome for result in results}
    assert (await shell.run("echo lives")).stdout.text == "lives\n"


async def test_sessions_rest_only_without_them(executor: ExecutorClient) -> None:
    async with executor.session(language="bash", idle_ttl_s=2) as shell:
        assert await said(shell, "sleep 3.5; echo lives") == "lives\n"
        assert await said(shell, "echo lives") == "lives\n"
        while shell.session_id in {info.session_id for info in await executor.list_sessions()}:
            await asyncio.sleep(0.1)
        with pytest.raises(SessionNotFound, match="without a cell"):
            await said(shell, "true")


async def test_what_cannot_run_beside_is_said(executor: ExecutorClient, shell: Session) -> None:
    with pytest.raises(InvalidRequest, match="beside is true, must be false without a session_id"):
        await executor.execute("true", language="bash", beside=True)
    async with executor.session() as python:
        with pytest.raises(InvalidRequest, match="beside is true, must be false in a session of 'python'"):
            await python.run("1", beside=True)
    for code, problem in (("a" * (128 << 10), "code has 131072 bytes, must have at most 131071"), ("a\0", "NUL")):
        with pytest.raises(InvalidRequest, match=problem):
            await beside(shell, code)
    with pytest.raises(InvalidRequest, match="args must be empty in a session"):
        await executor.execute("true", language="bash", session_id=shell.session_id, beside=True, args=["a"])
    with pytest.raises(InvalidRequest, match="env must be empty in a session"):
        await shell.run("true", env={"A": "b"})
    with pytest.raises(InvalidRequest, match=r"limits\.memory_bytes must be unset in a session"):
        await beside(shell, "true", limits=Limits(memory_bytes=1 << 20))
    assert await said(shell, f"echo {'a' * 131_000} | wc -c") == "131001\n"


async def test_a_level_without_mounts_has_none() -> None:
    bare = next((each for each in LEVELS if each.landlock), None)
    if bare is None:
        pytest.skip("the kernel has no Landlock")
    with bare.running() as server:
        async with ExecutorClient(server.target) as executor, executor.session(language="bash") as shell:
            with pytest.raises(InvalidRequest, match="beside is true, must be false at isolation level landlock"):
                await beside(shell, "true")
