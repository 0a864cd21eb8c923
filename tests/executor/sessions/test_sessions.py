"""The life of sessions on a real server: turns, interrupts, limits, death, expiry, listing, cancellation, drain."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator

import pytest

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    ExecutorUnavailable,
    InputFile,
    Limits,
    Outcome,
    Overloaded,
    Session,
    SessionBusy,
    SessionNotFound,
)
from executor_service.sessions.table import MAX_WAITING
from tests.executor.levels import Level
from tests.executor.servers import Server, children, held, let_go, processes_with, running, wait_for
from tests.executor.sessions.conftest import quiet, value

MIB = 1 << 20
SOON = Limits(wall_time_s=0.5)


@pytest.fixture
async def session(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(owner="test") as made:
        await made.run("x = 'kept'")
        yield made


async def busy(session: Session, executor: ExecutorClient) -> None:
    """Returns when a cell runs."""
    while True:
        (info,) = [info for info in await executor.list_sessions() if info.session_id == session.session_id]
        if info.busy:
            return
        await asyncio.sleep(0.02)


ENDLESS = [
    "while True: pass",
    "import time; time.sleep(600)",
    "import subprocess; subprocess.run(['sleep', '600'])",
    "import os; os.system('sleep 600')",
    "import threading; threading.Event().wait()",
    "import asyncio; await asyncio.sleep(600)",
    "import os; r, w = os.pipe(); os.read(r, 1)",
    "try:\n    while True:\n        n = 1\nexcept KeyboardInterrupt: print('noticed')",
]


async def test_a_cell_at_its_time_limit_is_interrupted_and_the_state_is_kept(session: Session) -> None:
    for code in ENDLESS:
        result = await session.run(code, limits=SOON)
        assert (result.outcome, result.cause) == (Outcome.TIME_LIMIT, Cause.POLICY), code
        assert (result.exit_code, result.signal) == (130, signal.SIGINT), code
        assert "0.5 s" in result.message
        # As at a terminal: the C library keeps the interrupt of `system` from the interpreter.
        assert ("KeyboardInterrupt" in result.stderr.text) is not ("noticed" in code or "system" in code), code
        assert await value(session, "x") == "'kept'", code


async def test_a_cell_that_ignores_the_interrupt_dies_with_its_session(session: Session) -> None:
    code = "while True:\n    try:\n        while True:\n            n = 1\n    except KeyboardInterrupt: pass"
    result = await session.run(code, limits=SOON)
    assert (result.outcome, result.cause, result.exit_code) == (Outcome.TIME_LIMIT, Cause.POLICY, 137)
    assert "did not end when it was interrupted" in result.message
    with pytest.raises(SessionNotFound, match="did not end when it was interrupted") as caught:
        await session.run("x")
    assert caught.value.cause is Cause.POLICY


async def test_an_interrupt_does_not_reach_what_an_earlier_cell_left_running(session: Session) -> None:
    await session.run("import subprocess; p = subprocess.Popen(['sleep', '600'])")
    await session.run("import time; time.sleep(600)", limits=SOON)
    assert await value(session, "p.poll() is None") == "True"


@pytest.mark.parametrize(
    ("code", "outcome", "exit_code", "why"),
    [
        ("import os; os._exit(7)", Outcome.NONZERO_EXIT, 7, "exited with code 7"),
        ("import os; os._exit(0)", Outcome.FINISHED, 0, "exited with code 0"),
        ("import ctypes; ctypes.string_at(0)", Outcome.SIGNALED, 128 + 11, "signal 11"),
        ("import os; os.abort()", Outcome.SIGNALED, 128 + 6, "signal 6"),
        ("import os; os.closerange(3, 1000)", Outcome.NONZERO_EXIT, 1, "exited with code 1"),
    ],
    ids=["exit", "exit 0", "segfault", "abort", "closes all"],
)
async def test_a_cell_that_ends_its_interpreter_ends_the_session(
    session: Session, code: str, outcome: Outcome, exit_code: int, why: str
) -> None:
    result = await session.run(f"print('before', flush=True)\n{code}")
    assert (result.outcome, result.cause, result.exit_code) == (outcome, Cause.POLICY, exit_code)
    assert result.stdout.text == "before\n"
    assert why in result.message
    with pytest.raises(SessionNotFound, match=why) as caught:
        await session.run("x")
    assert caught.value.cause is Cause.POLICY
    assert not await session.delete()


async def test_an_interpreter_that_ends_between_cells_is_noticed(session: Session, executor: ExecutorClient) -> None:
    await session.run("import threading, os; threading.Timer(0.1, os._exit, [3]).start()")
    while await executor.list_sessions(owner="test"):
        await asyncio.sleep(0.02)
    with pytest.raises(SessionNotFound, match="exited with code 3"):
        await session.run("x")


async def test_memory_is_limited_for_the_session_as_a_whole(executor: ExecutorClient) -> None:
    async with executor.session(limits=Limits(memory_bytes=128 * MIB)) as session:
        await session.run(f"kept = b'x' * {40 * MIB}")
        result = await session.run(f"more = b'x' * {200 * MIB}")
        assert (result.outcome, result.cause) == (Outcome.MEMORY_LIMIT, Cause.POLICY)
        with pytest.raises(SessionNotFound, match="memory limit"):
            await session.run("1")


async def test_cpu_time_is_limited_for_each_cell(executor: ExecutorClient) -> None:
    burn = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"
    async with executor.session(limits=Limits(cpu_time_s=1.0, wall_time_s=60)) as session:
        for _ in range(3):
            assert (await session.run(burn.format(0.5))).outcome is Outcome.FINISHED
        result = await session.run(burn.format(30))
        assert (result.outcome, result.cause) == (Outcome.CPU_LIMIT, Cause.POLICY)


async def test_a_process_that_writes_for_ever_does_not_hold_the_server_up(executor: ExecutorClient) -> None:
    async with executor.session() as session:
        flood = "head -c 4000000 /dev/zero; touch enough; exec yes"
        result = await session.run(
            f"import os, subprocess, time; p = subprocess.Popen(['sh', '-c', '{flood}'])\n"
            "while not os.path.exists('enough'): time.sleep(0.01)\n"
            "p.kill()"
        )
        assert result.stdout.truncated or result.outcome is Outcome.OUTPUT_LIMIT


async def test_cells_of_one_session_run_one_after_the_other(session: Session) -> None:
    await session.run("seen = []")
    code = "seen.append({0}); import time; time.sleep(0.05); seen.append({0})"
    calls = [asyncio.create_task(session.run(code.format(number))) for number in range(5)]
    results = await asyncio.gather(*calls)
    assert sorted(result.cell for result in results) == [3, 4, 5, 6, 7]
    seen = (await value(session, "seen"))[1:-1].split(", ")
    assert seen[::2] == seen[1::2]


async def test_a_cell_that_waits_for_its_turn_holds_no_slot() -> None:
    with running("max_concurrent=2", "max_queued=50") as server:
        async with ExecutorClient(server.target) as executor, executor.session() as session:
            first = asyncio.create_task(session.run("import time; time.sleep(600)"))
            await busy(session, executor)
            others = [asyncio.create_task(session.run("1")) for _ in range(5)]
            assert (await executor.execute("print(1)")).ok
            first.cancel()
            assert [result.outcome for result in await asyncio.gather(*others)] == [Outcome.FINISHED] * 5


async def test_too_many_waiting_cells_are_refused(session: Session, executor: ExecutorClient) -> None:
    first = asyncio.create_task(session.run("import time; time.sleep(600)"))
    await busy(session, executor)
    calls = [asyncio.create_task(session.run("1")) for _ in range(MAX_WAITING + 1)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [type(call.exception()) for call in done] == [SessionBusy]
    first.cancel()
    rest = await asyncio.gather(*(call for call in calls if call not in done))
    assert {result.outcome for result in rest} == {Outcome.FINISHED}


async def test_cancelling_a_cell_interrupts_it_and_keeps_the_state(session: Session) -> None:
    marker = f"600.{uuid.uuid4().int}"
    begins = f"import subprocess\ninterrupted = False\ntry:\n    subprocess.Popen(['sleep', '{marker}'])\n"
    call = asyncio.create_task(session.run(f"{begins}    while True:\n        n = 1\nfinally: interrupted = True"))
    await asyncio.to_thread(wait_for, lambda: processes_with(marker))
    call.cancel()
    assert await value(session, "x, interrupted") == "('kept', True)"


async def test_a_repeated_cell_returns_the_stored_result(session: Session) -> None:
    request_id = uuid.uuid4().hex
    first = await session.run("x += '!'; x", request_id=request_id)
    second = await session.run("x += '!'; x", request_id=request_id)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert first.displays == second.displays
    assert await value(session, "x") == "'kept!'"


async def test_the_result_of_a_cell_that_ended_its_session_is_kept(session: Session) -> None:
    request_id = uuid.uuid4().hex
    first = await session.run("import os; os._exit(5)", request_id=request_id)
    second = await session.run("import os; os._exit(5)", request_id=request_id)
    assert (first.exit_code, second.exit_code, second.deduplicated) == (5, 5, True)


async def test_deleting_a_session_ends_the_cell_that_runs_and_those_that_wait(executor: ExecutorClient) -> None:
    async with executor.session() as session:
        first = asyncio.create_task(session.run("import time; time.sleep(600)"))
        await busy(session, executor)
        second = asyncio.create_task(session.run("1"))
        await asyncio.sleep(0.1)
        assert await session.delete()
        result = await first
        assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA)
        with pytest.raises(SessionNotFound, match="was deleted") as caught:
            await second
        assert caught.value.cause is Cause.INFRA
        assert not await session.delete()


async def test_nothing_of_a_deleted_session_is_left(executor: ExecutorClient, server: Server, level: Level) -> None:
    marker = f"601.{uuid.uuid4().int}"
    start = f"import subprocess\nsubprocess.Popen(['sleep', '{marker}'], start_new_session=True)"
    async with executor.session() as session:
        result = await session.run(f"{start}\nopen('f', 'w').write('x')")
        assert result.outcome is Outcome.FINISHED
        assert processes_with(marker)
    wait_for(lambda: not processes_with(marker) and quiet(server, level))
    assert server.status().sessions == 0
    fresh = await executor.execute("import os; print(os.listdir('.'), os.listdir(os.environ['TMPDIR']))")
    assert fresh.stdout.text == "['main.py'] []\n"


async def test_idle_sessions_are_deleted_and_used_ones_are_not(executor: ExecutorClient) -> None:
    async with executor.session(idle_ttl_s=600.0) as other:
        short = await executor.create_session(idle_ttl_s=1.0)
        used = Session(executor, short)
        result: ExecutionResult = await used.run("import time; time.sleep(2.5); 'longer than the ttl'")
        assert result.outcome is Outcome.FINISHED
        while short.session_id in {info.session_id for info in await executor.list_sessions()}:
            await asyncio.sleep(0.1)
        with pytest.raises(SessionNotFound, match="after 1 s without a cell") as caught:
            await used.run("1")
        assert caught.value.cause is Cause.INFRA
        assert await value(other, "1") == "1"


async def test_sessions_are_listed_by_owner_and_tenant(executor: ExecutorClient) -> None:
    made = [
        await executor.create_session(owner=owner, tenant=tenant)
        for owner, tenant in (("a", "t"), ("b", "t"), ("a", "u"), ("a", "t"))
    ]
    try:
        for page_size in (0, 1, 2, 3):
            assert [info.session_id for info in await executor.list_sessions(page_size=page_size)] == [
                info.session_id for info in made
            ]
        by_both = await executor.list_sessions(owner="a", tenant="t")
        assert [info.session_id for info in by_both] == [made[0].session_id, made[3].session_id]
        assert by_both[0].served_by in by_both[0].session_id
    finally:
        for info in made:
            await executor.delete_session(info.session_id)


async def test_a_session_outlives_the_connection_that_made_it(server: Server) -> None:
    async with ExecutorClient(server.target) as first:
        info = await first.create_session()
        await Session(first, info).run("x = 5")
    async with ExecutorClient(server.target) as second, Session(second, info) as session:
        assert await value(session, "x") == "5"


async def test_the_same_request_id_makes_one_session(executor: ExecutorClient) -> None:
    infos = await asyncio.gather(*(executor.create_session(request_id="make-1") for _ in range(5)))
    assert len({info.session_id for info in infos}) == 1
    assert (await executor.create_session(request_id="make-1")).session_id == infos[0].session_id
    assert len(await executor.list_sessions()) == 1
    await executor.delete_session(infos[0].session_id)


async def test_the_number_of_sessions_is_bounded_and_branches_count() -> None:
    with running("max_concurrent=2", "max_sessions=3") as server:
        async with ExecutorClient(server.target) as executor:
            session = Session(executor, await executor.create_session())
            with pytest.raises(Overloaded, match="max_sessions"):
                await session.branch(3)
            branches = await session.branch(2)
            with pytest.raises(Overloaded, match="max_sessions"):
                await executor.create_session()
            assert (await executor.execute("print(1)")).ok
            await branches[0].delete()
            await executor.create_session()
            assert server.status().sessions == 3


async def test_a_tenant_gets_its_share_of_the_sessions_that_another_has_taken() -> None:
    """Another's sessions end for it: one that rests at once, one in which a cell runs when that has ended, and none
    within the other's own share."""
    with running("max_concurrent=4", "max_sessions=4") as server:
        async with ExecutorClient(server.target) as executor:
            greedy = [Session(executor, await executor.create_session(tenant="greedy")) for _ in range(4)]
            cells = [asyncio.create_task(greedy[at].run("while True: pass")) for at in (0, 2)]
            marker, code = held()
            cells.append(asyncio.create_task(greedy[3].run(code)))
            await asyncio.to_thread(wait_for, lambda: server.status().running == 3 and processes_with(marker))
            calm = Session(executor, await executor.create_session(tenant="calm"))
            with pytest.raises(SessionNotFound, match=r"gave way to another tenant's.*max_sessions") as caught:
                await greedy[1].run("1")
            assert caught.value.cause is Cause.INFRA
            branching = asyncio.create_task(calm.branch())
            await busy(calm, executor)
            following = asyncio.create_task(greedy[3].run("1"))
            await asyncio.to_thread(wait_for, lambda: server.status().queued == 1)
            await asyncio.to_thread(let_go, marker)
            await branching
            assert (await cells[2]).outcome is Outcome.FINISHED, "its own cell came to its end"
            with pytest.raises(SessionNotFound, match="gave way"):
                await following
            with pytest.raises(Overloaded, match=r"\(max_sessions\), 2 of them this tenant's, whose share is 2$"):
                await calm.branch()
            with pytest.raises(Overloaded, match=r"\(max_sessions\), 2 of them this tenant's, whose share is 2$"):
                await executor.create_session(tenant="greedy")
            assert server.status().sessions == 4
            assert not any(cell.done() for cell in cells[:2])
            for cell in cells[:2]:
                cell.cancel()
            await asyncio.gather(*cells, return_exceptions=True)


async def test_files_and_environment_are_there_from_the_first_cell(executor: ExecutorClient) -> None:
    async with executor.session(env={"MODE": "fast"}, files=[InputFile("a", b"A")]) as session:
        look = "import os; os.environ['MODE'], open('a').read(), os.getcwd() == os.environ['HOME']"
        assert await value(session, look) == "('fast', 'A', True)"


async def test_sessions_do_not_see_each_other(executor: ExecutorClient) -> None:
    async with executor.session() as one, executor.session() as two:
        await one.run("import os; secret = 1; open(os.environ['TMPDIR'] + '/f', 'w').close(); open('g', 'w').close()")
        look = "import os; 'secret' in globals(), os.listdir(os.environ['TMPDIR']), os.listdir('.')"
        assert await value(two, look) == "(False, [], [])"


async def test_the_end_of_the_server_is_the_end_of_its_sessions() -> None:
    with running("max_concurrent=2", "drain_grace_s=0") as server:
        async with ExecutorClient(server.target) as executor:
            session = Session(executor, await executor.create_session())
            await session.branch(2)
            call = asyncio.create_task(session.run("import time; time.sleep(600)"))
            await busy(session, executor)
            server.process.send_signal(signal.SIGTERM)
            result = await call
            assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.INFRA)
            with pytest.raises(ExecutorUnavailable):
                await executor.create_session(timeout=5)
        pid = server.pid
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        assert children(pid) == []
