"""Branches on a real server: each goes on from the state of its parent, and keeps to itself from then on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from executor_service import (
    CannotBranch,
    Cause,
    ExecutorClient,
    FileStatus,
    InputFile,
    InvalidRequest,
    Limits,
    Outcome,
    Session,
    SessionBusy,
    SessionNotFound,
)
from executor_service.guest.walls import landlock
from tests.executor.levels import Level
from tests.executor.servers import Server, descriptors, processes_with, wait_for
from tests.executor.sessions.conftest import quiet, value

MIB = 1 << 20


@pytest.fixture
async def session(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(owner="root") as made:
        await made.run("x = [1]")
        yield made


@contextlib.asynccontextmanager
async def branched(session: Session, count: int = 1) -> AsyncIterator[list[Session]]:
    """Branches that end with the block."""
    branches = await session.branch(count)
    try:
        yield branches
    finally:
        await asyncio.gather(*(branch.delete() for branch in branches))


async def test_branches_go_on_from_one_state_and_do_not_see_each_others(session: Session) -> None:
    async with branched(session, 4) as branches:
        texts = await asyncio.gather(*(value(branch, f"x.append({i}); x") for i, branch in enumerate(branches)))
        assert texts == [f"[1, {i}]" for i in range(4)]
        assert await value(session, "x") == "[1]"


async def test_a_branch_has_its_parents_count_of_cells_and_names_it(session: Session, executor: ExecutorClient) -> None:
    (branch,) = await session.branch(owners=["leaf"])
    async with branch:
        assert (branch.info.parent_session_id, branch.info.owner) == (session.session_id, "leaf")
        assert (await branch.run("1")).cell == 2
        assert [info.owner for info in await executor.list_sessions()] == ["root", "leaf"]


async def test_a_branch_of_a_branch(session: Session) -> None:
    async with branched(session) as (child,):
        await child.run("x.append(2)")
        async with branched(child) as (grandchild,):
            await child.run("x.append(3)")
            assert await value(grandchild, "x") == "[1, 2]"


async def test_branches_outlive_their_parent(session: Session, executor: ExecutorClient) -> None:
    async with branched(session, 2) as (one, two):
        assert await session.delete()
        assert await value(one, "x") == "[1]"
        assert (await one.run("import os; os._exit(3)")).exit_code == 3
        assert await value(two, "x") == "[1]"
        assert len(await executor.list_sessions()) == 1


async def test_what_a_branch_started_ends_with_it_and_not_with_others(session: Session) -> None:
    marker = str(60_000 + random.randrange(10_000))
    start = f"import subprocess; p = subprocess.Popen(['sleep', '{marker}'])"
    async with branched(session, 2) as (one, two):
        await one.run(start)
        await two.run(start)
        assert await one.delete()
        assert await value(two, "p.poll() is None") == "True"
        wait_for(lambda: len(processes_with(marker)) == 1)
        assert await value(two, "p.poll() is None") == "True"
    wait_for(lambda: processes_with(marker) == [])


async def test_a_work_folder_is_copied_and_then_private(session: Session) -> None:
    await session.run("import os; os.makedirs('d/e'); open('d/e/f', 'w').write('root'); os.chmod('d/e/f', 0o640)")
    await session.run("os.symlink('d/e/f', 'link'); os.mkfifo('pipe')")
    async with branched(session) as (branch,):
        assert await value(branch, "open('link').read(), oct(os.stat('d/e/f').st_mode), os.path.islink('link')") == (
            "('root', '0o100640', True)"
        )
        await branch.run("open('d/e/f', 'w').write('branch'); open('new', 'w').close()")
        result = await branch.run("1", files=[InputFile("put", b"p")], return_paths=["d/e/f", "put"])
        assert [file.content for file in result.files] == [b"branch", b"p"]
        assert await value(session, "open('d/e/f').read(), sorted(os.listdir())") == "('root', ['d', 'link', 'pipe'])"
        home = await value(session, "os.environ['HOME']")
        assert await value(branch, f"os.getcwd() == os.environ['HOME'] != {home}") == "True"


async def test_a_branch_that_removes_its_work_folder_goes_on_without(session: Session) -> None:
    async with branched(session) as (branch,):
        result = await branch.run("import os; os.rmdir(os.getcwd()); print('gone')", return_paths=["f"])
        assert result.stdout.data == b"gone\n"
        assert [file.status for file in result.files] == [FileStatus.MISSING]
        assert (await branch.run("print(1)")).ok


async def test_the_current_folder_is_the_same_one_of_the_copy(session: Session) -> None:
    await session.run("import os; os.mkdir('sub'); os.chdir('sub'); open('here', 'w').close()")
    async with branched(session) as (branch,):
        assert await value(branch, "os.listdir(), os.getcwd().endswith('/sub')") == "(['here'], True)"


async def test_modules_of_the_work_folder_are_found_in_a_branch(session: Session) -> None:
    await session.run("open('mine.py', 'w').write('v = 1')")
    async with branched(session) as (branch,):
        await branch.run("open('mine.py', 'w').write('v = 2')")
        assert await value(branch, "import mine; mine.v") == "2"
        assert await value(session, "import mine; mine.v") == "1"


async def test_random_numbers_differ_between_branches(session: Session) -> None:
    await session.run("import random; random.seed(1)")
    async with branched(session, 3) as branches:
        texts = await asyncio.gather(*(value(branch, "random.random()") for branch in branches))
        assert len(set(texts)) == 3


async def test_output_and_input_are_those_of_each_branch(session: Session) -> None:
    await session.run("import sys; sys.stdout.write('before')", stdin=b"unread")
    async with branched(session, 2) as branches:
        results = await asyncio.gather(
            *(branch.run(f"print({i}, sys.stdin.read())", stdin=b"in%d" % i) for i, branch in enumerate(branches))
        )
        assert [result.stdout.text for result in results] == ["0 in0\n", "1 in1\n"]
        assert (await branches[0].run("input()")).message == "EOFError: EOF when reading a line"


async def test_output_written_just_before_a_branch_is_not_written_twice(session: Session) -> None:
    await session.run("import threading, sys\nsys.stdout.write('once')")
    async with branched(session) as (branch,):
        assert (await branch.run("print('branch')")).stdout.text == "branch\n"
        assert (await session.run("print('root')")).stdout.text == "root\n"


async def test_cells_of_branches_run_at_the_same_time(session: Session) -> None:
    await session.run("import os, time; place = os.environ['TMPDIR']")
    meet = "open(f'{place}/{n}', 'w').close()\n"
    meet += "while len([f for f in os.listdir(place) if len(f) == 1]) < 3: time.sleep(0.01)"
    async with branched(session, 3) as branches:
        results = await asyncio.gather(*(branch.run(f"n = {i}\n{meet}") for i, branch in enumerate(branches)))
        assert {result.outcome for result in results} == {Outcome.FINISHED}


async def test_an_interrupted_branch_leaves_the_others_alone(session: Session) -> None:
    async with branched(session, 2) as (one, two):
        late, fine = await asyncio.gather(
            one.run("import time; time.sleep(600)", limits=Limits(wall_time_s=0.3)),
            two.run("import time; time.sleep(1.5); x"),
        )
        assert (late.outcome, fine.outcome) == (Outcome.TIME_LIMIT, Outcome.FINISHED)
        assert await value(one, "x") == "[1]"


async def test_a_branch_that_is_killed_leaves_the_others_alone(session: Session) -> None:
    stubborn = "while True:\n    try:\n        while True:\n            n = 1\n    except KeyboardInterrupt: pass"
    async with branched(session, 2) as (one, two):
        late = await one.run(stubborn, limits=Limits(wall_time_s=0.3))
        assert (late.outcome, late.exit_code) == (Outcome.TIME_LIMIT, 137)
        with pytest.raises(SessionNotFound):
            await one.run("x")
        assert [await value(each, "x") for each in (two, session)] == ["[1]", "[1]"]


def _needs_scopes(level: Level) -> None:
    if min(level.version, landlock.abi()) < landlock.SCOPES:
        pytest.skip("Landlock does not scope signals before Linux 6.12")


async def test_branches_can_not_signal_or_read_their_family(session: Session, level: Level) -> None:
    _needs_scopes(level)
    attack = """
found = []
for name in {pids}:
    if int(name) != os.getpid():
        for attempt in (lambda: os.kill(int(name), 0), lambda: open(f'/proc/{{name}}/mem', 'rb'),
                        lambda: open(f'/proc/{{name}}/environ').read(1)):
            try: attempt(); found.append(name)
            except OSError: pass
found
"""
    root = int(await value(session, "import os; os.getpid()"))
    async with branched(session, 2) as (one, two):
        other = int(await value(two, "os.getpid()"))
        init = int(await value(two, "os.getppid()"))
        assert await value(one, attack.format(pids=[root, other, init])) == "[]"
        assert await value(one, "import subprocess; p = subprocess.Popen(['sleep', '9']); p.kill(); p.wait()") == "-9"


async def test_a_branch_that_kills_everything_reaches_itself_alone(session: Session, level: Level) -> None:
    _needs_scopes(level)
    async with branched(session, 2) as (one, two):
        result = await one.run("import os; os.kill(-1, 9)")
        assert result.cause is Cause.POLICY
        assert [await value(each, "x") for each in (two, session)] == ["[1]", "[1]"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import threading; e = threading.Event(); t = threading.Thread(target=e.wait); t.start()", "1 other thread"),
        ("import subprocess; p = subprocess.Popen(['sleep', '600'])", "child processes"),
        (
            "import asyncio; t = asyncio.ensure_future(asyncio.sleep(600)); await asyncio.sleep(0)",
            "asyncio tasks",
        ),
    ],
    ids=["thread", "child", "task"],
)
async def test_a_session_that_can_not_branch_says_why(session: Session, code: str, why: str) -> None:
    await session.run(code)
    with pytest.raises(CannotBranch, match=why):
        await session.branch(2)
    assert await value(session, "x") == "[1]"


async def test_a_session_that_could_not_branch_can_when_the_reason_is_gone(session: Session) -> None:
    await session.run("import subprocess, asyncio; p = subprocess.Popen(['sleep', '600'])\nawait asyncio.sleep(0)")
    with pytest.raises(CannotBranch):
        await session.branch()
    await session.run("p.kill(); p.wait()")
    async with branched(session) as (branch,):
        assert await value(branch, "await asyncio.sleep(0, 5)") == "5"
        assert await value(session, "await asyncio.sleep(0, 6)") == "6"


async def test_a_running_session_can_not_branch(session: Session, executor: ExecutorClient) -> None:
    call = asyncio.create_task(session.run("import time; time.sleep(600)"))
    while not (await executor.list_sessions())[0].busy:
        await asyncio.sleep(0.02)
    with pytest.raises(SessionBusy):
        await session.branch()
    call.cancel()


async def test_branches_are_all_or_none(executor: ExecutorClient) -> None:
    async with executor.session(limits=Limits(processes=6)) as session:
        with pytest.raises(CannotBranch, match="limit of 6 processes"):
            await session.branch(30)
        assert len(await executor.list_sessions()) == 1
        async with asyncio.timeout(30):
            while True:
                try:
                    (branch,) = await session.branch()
                    break
                except CannotBranch:  # what the attempt had forked counts until the kernel has reaped it
                    await asyncio.sleep(0.05)
        assert await value(branch, "1") == "1"
        await branch.delete()


async def test_branches_that_were_made_in_vain_are_gone_when_it_is_answered(
    executor: ExecutorClient, level: Level
) -> None:
    if level.landlock:
        pytest.skip("no bound for folders, and no list of processes, at this level")
    async with executor.session(limits=Limits(disk_bytes=16 * MIB)) as session:
        await session.run(f"import os; open('big', 'wb').write(bytes({3 * MIB}))")
        for _ in range(3):
            with pytest.raises(CannotBranch, match="No space left"):
                await session.branch(8)
            # Its init, itself, and perhaps the one that found no room, which ends by itself.
            assert int(await value(session, "sum(name.isdigit() for name in os.listdir('/proc'))")) <= 3


async def test_the_memory_limit_is_for_the_family(executor: ExecutorClient) -> None:
    limits = Limits(memory_bytes=128 * MIB)
    async with executor.session(limits=limits) as session, branched(session) as (branch,):
        await session.run(f"kept = b'x' * {60 * MIB}")
        # Without control groups the family is looked at every 25 ms.
        result = await branch.run(f"import time; more = b'x' * {90 * MIB}; time.sleep(5)")
        assert (result.outcome, result.cause) == (Outcome.MEMORY_LIMIT, Cause.POLICY)


async def test_a_branch_costs_no_copy_of_the_memory(executor: ExecutorClient) -> None:
    async with executor.session(limits=Limits(memory_bytes=256 * MIB)) as session:
        await session.run(f"big = bytearray(b'x' * {100 * MIB})")
        async with branched(session, 4) as branches:
            texts = await asyncio.gather(*(value(branch, "big[0], len(big) >> 20") for branch in branches))
            assert set(texts) == {"(120, 100)"}


async def test_the_same_request_id_makes_the_same_branches(session: Session, executor: ExecutorClient) -> None:
    first = await executor.branch_session(session.session_id, 2, request_id="branch-1")
    second = await executor.branch_session(session.session_id, 2, request_id="branch-1")
    assert [info.session_id for info in first] == [info.session_id for info in second]
    with pytest.raises(InvalidRequest, match="request_id"):
        await executor.branch_session(session.session_id, 3, request_id="branch-1")
    for info in first:
        await executor.delete_session(info.session_id)


async def test_nothing_of_a_family_is_left(executor: ExecutorClient, server: Server, level: Level) -> None:
    before = len(descriptors(server.pid))
    for _ in range(3):
        async with executor.session() as session, branched(session, 5) as branches:
            for branch in branches:
                await branch.run("import os; os.fork()")
    async with executor.session() as session:
        (branch,) = await session.branch()
    assert await value(branch, "1") == "1"
    assert await branch.delete()
    wait_for(lambda: quiet(server, level))
    assert server.status().sessions == 0
    wait_for(lambda: len(descriptors(server.pid)) <= before + 12)
