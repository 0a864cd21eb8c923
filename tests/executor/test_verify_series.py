"""Cases of one request in one turn of the queue; calls answered by forks of one process, which share nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from executor_service import (
    Cause,
    ExecutorClient,
    FunctionCase,
    InputFile,
    Limits,
    Outcome,
    StdioCase,
    Verdict,
    VerifyResult,
)
from executor_service.guest.walls import landlock
from executor_service.verification.verify import AT_ONCE, LEAST_CALLS
from tests.executor.levels import LEVELS, STRONGEST
from tests.executor.servers import Server, processes_with, running, wait_for
from tests.executor.test_leases import limiter_running

NAMESPACES = [each for each in STRONGEST if not each.values[0].landlock]
BARE = [level for level in LEVELS if level.landlock and (level.who == "user" or level.place)]
"""Each version of Landlock once: calls are forked at one, and not at the other."""
CASES = LEAST_CALLS * AT_ONCE
"""So many calls of one request are forked."""
LOOK = """
import contextlib, ctypes, fcntl, os, random, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
KEPT = []
def look():
    facts = [sorted(os.listdir(path)) for path in ("/tmp", "/dev/shm", "/sandbox")]
    facts += [(os.stat(path).st_mode, os.stat(path).st_nlink, os.listxattr(path)) for path in ("/tmp", "/sandbox")]
    facts += [os.statvfs("/tmp")[2:8], open("data.txt").read(), os.stat("data.txt").st_mode, list(KEPT)]
    facts += [libc.shmget(0x666, 0, 0), libc.semget(0x666, 0, 0), libc.msgget(0x666, 0)]
    facts += [fcntl.fcntl(number, fcntl.F_GETFL) for number in range(3)]
    facts += [dict(os.environ), os.getcwd(), os.umask(0o022), signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL]
    facts += [resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), len(os.sched_getaffinity(0))]
    facts += [threading.active_count(), len(sys.modules), len([each for each in os.listdir("/proc") if each.isdigit()])]
    with socket.socket() as one:
        one.bind(("127.0.0.1", 7766))
    return facts
"""
CHANGES = {
    "nothing": "pass",
    "a value": "KEPT.append(number)",
    "a module": "import colorsys",
    "a file": "open('/tmp/left', 'w').write('x' * 9999)",
    "a file that is gone": "open('/tmp/left', 'w').close(); os.unlink('/tmp/left')",
    "a folder in /dev/shm": "os.mkdir('/dev/shm/left')",
    "beside the program": "open('beside', 'w').close()",
    "a longer file": "open('data.txt', 'a').write('more')",
    "no file": "os.unlink('data.txt')",
    "another file in its place": "open('other', 'w').write('x'); os.rename('other', 'data.txt')",
    "a link to it": "os.link('data.txt', 'also')",
    "its mode": "os.chmod('data.txt', 0)",
    "a mode": "os.chmod('/tmp', 0o700)",
    "a mode of the work folder": "os.chmod('/sandbox', 0o500)",
    "an attribute": "with contextlib.suppress(OSError): os.setxattr('/tmp', 'user.left', b'x')",  # before Linux 6.6
    "shared memory": "libc.shmget(0x666, 4096, 0o1600)",
    "semaphores": "libc.semget(0x666, 1, 0o1600)",
    "a message queue": "libc.msgget(0x666, 0o1600)",
    "a process": "subprocess.Popen(['sleep', '60'], start_new_session=True)",
    "a process that is gone": "subprocess.run(['true'])",
    "a thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a port": "server = socket.create_server(('127.0.0.1', 7766))\n"
    "    one = socket.create_connection(server.getsockname()); server.accept()[0].close(); one.close()",
    "a flag of a stream": "os.set_blocking(1, False)",
    "surroundings": "os.environ['A'] = 'b'; os.chdir('/tmp'); os.umask(0)",
    "a handler": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); os.nice(5); os.sched_setaffinity(0, [0])",
}


@pytest.fixture(scope="module", params=NAMESPACES)
def small(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param.running("max_concurrent=2", "spare_boxes=1") as server:
        yield server


@pytest.fixture
async def client(small: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(small.target) as client:
        yield client


async def calls(client: ExecutorClient, code: str, arguments: list[tuple[Any, ...]], **more: Any) -> VerifyResult:
    """Calls of `f`, one after the other; none is right."""
    cases = [FunctionCase(each, "no such value") for each in arguments]
    return await client.verify(code, cases, entry_point="f", **more)


async def nothing_is_found(client: ExecutorClient, look: str, change: str) -> None:
    """Each call looks around as the candidate did when it was loaded, and then leaves something."""
    code = f"""{look}
SEEN = look()
def leave(number):
    {change}
def f(number):
    found = look()
    leave(number)
    return [number, [each for each in zip(found, SEEN) if each[0] != each[1]]]
"""
    cases = [FunctionCase((number,), [number, []]) for number in range(LEAST_CALLS + 1)]
    data = (InputFile("data.txt", b"data"),)
    result = await client.verify(code, cases, entry_point="f", files=data, stop_on_failure=True)
    assert [(case.verdict, case.value or case.message) for case in result.cases] == [
        (Verdict.PASSED, [number, []]) for number in range(LEAST_CALLS + 1)
    ]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_call_finds_nothing_of_another(client: ExecutorClient, change: str) -> None:
    await nothing_is_found(client, LOOK, CHANGES[change])


@pytest.mark.xfail(reason="whoever is loaded into a process can change how it is forked", strict=True)
async def test_a_candidate_that_takes_its_process_over_passes_nothing_on(client: ExecutorClient) -> None:
    code = """
import sys
KEPT = []
def f():
    KEPT.append(1)
    return len(KEPT)
def answered_here(forks, channel, peer, head, blob):
    peer.answer(head, blob)
    channel.send({"type": "over", "clean": True})
frame = sys._getframe()
while "_fork" not in frame.f_globals:
    frame = frame.f_back
frame.f_globals["_fork"] = answered_here
"""
    result = await calls(client, code, [()] * CASES)
    assert {case.value for case in result.cases} == {1}


LOOK_BARE = """
import contextlib, fcntl, os, signal, subprocess, sys, threading, time
KEPT = []
TEMPORARY = os.environ["TMPDIR"]
def look():
    facts = [sorted(os.listdir(path)) for path in (".", TEMPORARY)]
    facts += [(os.stat(path).st_mode, os.stat(path).st_nlink) for path in (".", TEMPORARY)]
    facts += [open("data.txt").read(), os.stat("data.txt").st_mode, list(KEPT)]
    facts += [fcntl.fcntl(number, fcntl.F_GETFL) for number in range(3)]
    facts += [dict(os.environ), os.getcwd(), os.umask(0o022), signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL]
    facts += [threading.active_count(), len(sys.modules)]
    return facts
"""
CHANGES_BARE = {
    "nothing": "pass",
    "a value": "KEPT.append(number)",
    "a file": "open(TEMPORARY + '/left', 'w').write('x' * 9999)",
    "beside the program": "open('beside', 'w').close()",
    "a folder": "os.mkdir('left')",
    "a longer file": "open('data.txt', 'a').write('more')",
    "no file": "os.unlink('data.txt')",
    "a link to it": "with contextlib.suppress(OSError): os.link('data.txt', 'also')",
    "a mode": "os.chmod(TEMPORARY, 0o500)",
    "a mode of the work folder": "os.chmod('.', 0o500)",
    "a process": "subprocess.Popen(['sleep', '60'], start_new_session=True)",
    "a thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a flag of a stream": "os.set_blocking(1, False)",
    "surroundings": "os.environ['A'] = 'b'; os.chdir(TEMPORARY); os.umask(0)",
}


@pytest.fixture(scope="module", params=BARE, ids=str)
def bare(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param.running("max_concurrent=2", "spare_boxes=1") as server:
        yield server


@pytest.mark.parametrize("change", CHANGES_BARE)
async def test_a_call_finds_nothing_of_another_without_namespaces(bare: Server, change: str) -> None:
    async with ExecutorClient(bare.target) as client:
        await nothing_is_found(client, LOOK_BARE, CHANGES_BARE[change])


async def test_without_namespaces_calls_are_forked_where_signals_are_scoped(bare: Server) -> None:
    code = """
import os, subprocess
LOADED = os.getpid()
def f(): return [LOADED, os.getpid(), subprocess.Popen(["sleep", "600.25"], start_new_session=True).pid]
"""
    async with ExecutorClient(bare.target) as client:
        version = max(level.landlock_version for level in bare.status().isolation_levels)
        result = await calls(client, code, [()] * CASES)
        for obstacle in ("an open file", "shared memory", "a file", "a changed file", "a folder", "a thread"):
            code = f"{OBSTACLES[obstacle].replace('/tmp', '.')}\n{WHERE}"
            found = await calls(client, code, [()] * CASES, files=(InputFile("data.txt", b"data"),))
            assert all(loaded == called for loaded, called in (case.value for case in found.cases)), obstacle
    values = [case.value for case in result.cases]
    assert all((loaded != called) is (version >= landlock.SCOPES) for loaded, called, _ in values)
    await asyncio.to_thread(wait_for, lambda: not processes_with("600.25", bare.pid))


WHERE = "import os\nLOADED = os.getpid()\ndef f(): return [LOADED, os.getpid()]\n"


async def test_the_candidate_is_loaded_once_and_forked_for_each_call(client: ExecutorClient) -> None:
    result = await calls(client, WHERE, [()] * 40)
    where = [case.value for case in result.cases]
    assert all(loaded != called for loaded, called in where)
    named = "import os\nLOADED = os.urandom(8).hex()\ndef f(): return LOADED\n"
    result = await calls(client, named, [()] * 40)
    assert len({case.value for case in result.cases}) < 40


OBSTACLES = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "a process": "import subprocess\nPROCESS = subprocess.Popen(['sleep', '60'])",
    "an open file": "FILE = open('data.txt')",
    "shared memory": "import mmap\nMEMORY = mmap.mmap(-1, 4096)",
    "a file": "open('/tmp/made', 'w').close()",
    "a changed file": "open('data.txt', 'a').write('x')",
    "a folder": "import os\nos.mkdir('made')",
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_what_forks_would_share_is_loaded_for_each_call(client: ExecutorClient, obstacle: str) -> None:
    code = f"{OBSTACLES[obstacle]}\n{WHERE}"
    result = await calls(client, code, [()] * CASES, files=(InputFile("data.txt", b"data"),))
    assert all(loaded == called for loaded, called in (case.value for case in result.cases))


async def test_folders_among_the_files_are_no_obstacle_to_the_calls(client: ExecutorClient) -> None:
    code = "def f(): return open('some/data.txt').read()\n"
    cases = [FunctionCase((), "data")] * CASES
    result = await client.verify(code, cases, entry_point="f", files=(InputFile("some/data.txt", b"data"),))
    assert result.all_passed


async def test_numbers_drawn_are_those_of_a_candidate_that_was_just_loaded(client: ExecutorClient) -> None:
    code = "import random\nrandom.seed(5)\ndef f(): return random.random()\n"
    first = random.Random(5).random()
    result = await client.verify(code, [FunctionCase((), first)] * CASES, entry_point="f")
    assert result.all_passed


async def test_each_call_has_limits_of_its_own(client: ExecutorClient) -> None:
    code = """
import time
def f(seconds, sleeps):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
    time.sleep(sleeps)
    return 1
"""
    asked = [(0.2, 0.0)] * (CASES - 4) + [(9.0, 0.0)] + [(0.0, 9.0)] + [(0.2, 0.0)] * 2
    limits = Limits(wall_time_s=3.0, cpu_time_s=1.0)
    result = await client.verify(code, [FunctionCase(each, 1) for each in asked], entry_point="f", limits=limits)
    outcomes = [case.execution.outcome for case in result.cases if case.execution]
    expected = [Outcome.FINISHED] * (CASES - 4) + [Outcome.CPU_LIMIT, Outcome.TIME_LIMIT] + [Outcome.FINISHED] * 2
    assert outcomes == expected
    assert [case.passed for case in result.cases] == [outcome is Outcome.FINISHED for outcome in expected]


ENDS = """
import os, signal
def f(how):
    if how == "exit": os._exit(3)
    if how == "leave": raise SystemExit(4)
    if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if how == "parent": os.kill(os.getppid(), signal.SIGKILL)
    if how == "stop": os.kill(os.getppid(), signal.SIGSTOP)
    if how == "memory": return len(bytearray(400 << 20))
    return 1
"""


@pytest.mark.parametrize("how", ["exit", "leave", "kill", "memory"])
async def test_a_call_that_ends_its_process_fails_alone(client: ExecutorClient, how: str) -> None:
    asked = ["good", "good", how, *["good"] * CASES]
    limits = Limits(wall_time_s=2.0, memory_bytes=256 << 20, processes=16)
    cases = [FunctionCase((each,), 1) for each in asked]
    result = await client.verify(ENDS, cases, entry_point="f", limits=limits)
    assert [case.passed for case in result.cases] == [each == "good" for each in asked]
    assert result.cases[2].cause is Cause.POLICY


@pytest.mark.parametrize("how", ["parent", "stop"])
async def test_a_call_that_ends_what_it_was_forked_from_harms_no_other(client: ExecutorClient, how: str) -> None:
    cases = [FunctionCase((each,), 1) for each in ("good", "good", how, *["good"] * CASES)]
    result = await client.verify(ENDS, cases, entry_point="f", limits=Limits(wall_time_s=2.0))
    assert result.all_passed


async def test_a_candidate_that_can_not_be_loaded_fails_every_case(client: ExecutorClient) -> None:
    result = await calls(client, "raise ValueError('never')\n", [()] * CASES)
    assert {(case.verdict, case.cause) for case in result.cases} == {(Verdict.FAILED, Cause.POLICY)}
    assert all("ValueError: never" in case.message for case in result.cases)
    assert all(case.execution and case.execution.exit_code == 1 for case in result.cases)


async def test_a_series_takes_one_lease_and_gives_it_back_for_others() -> None:
    with limiter_running("buckets.code.max_in_flight=1") as limiter, running(f"limiter={limiter.target}") as server:
        async with ExecutorClient(server.target) as client:
            many = [StdioCase(b"%d" % number, b"%d" % number) for number in range(40)]
            result = await client.verify("print(input())", many)
            assert result.all_passed
            assert limiter.bucket().granted_total < len(many)
            slow = [StdioCase(b"", b"1")] * 12
            grading = asyncio.create_task(client.verify("import time; time.sleep(0.3); print(1)", slow))
            await asyncio.to_thread(wait_for, lambda: limiter.bucket().queued == 3)
            other = await client.execute("print(2)")
            assert other.ok
            assert not grading.done()
            assert (await grading).all_passed
