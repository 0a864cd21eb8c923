"""Programs that take all they can get: processes, memory, disk, output, kernel objects."""

from __future__ import annotations

import asyncio

import pytest

from executor_service import Cause, ExecutionResult, ExecutorClient, FileStatus, Limits, Outcome
from executor_service.guest.walls import landlock
from tests.executor.adversarial.attempts import MARKER, printed, table
from tests.executor.levels import Level
from tests.executor.servers import SLOWNESS

MIB = 1 << 20


async def contained(executor: ExecutorClient, code: str, limits: Limits) -> ExecutionResult:
    """Ends as the program's own fault, and another run beside it is not harmed."""
    hostile = executor.execute("import os, sys, time, socket\n" + code, limits=limits)
    result, beside = await asyncio.gather(hostile, executor.execute("print(6 * 7)", limits=Limits(wall_time_s=60)))
    assert beside.stdout.data == b"42\n", beside
    assert result.cause is Cause.POLICY, result
    return result


BOMBS = table(r"""
=== forks
while True:
    try: os.fork()
    except OSError: pass
=== forks_of_sessions
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
=== forks_and_dies
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
=== execs
import subprocess
while True:
    try: subprocess.Popen([sys.executable, '-c', '0'])
    except OSError: pass
=== threads
import threading
while True:
    try: threading.Thread(target=time.sleep, args=(99,)).start()
    except RuntimeError: pass
=== shell
os.execv('/bin/bash', ['bash', '-c', 'f() { f | f & }; f; sleep 99'])
""")


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_contained(executor: ExecutorClient, name: str) -> None:
    await contained(executor, BOMBS[name], Limits(processes=32, wall_time_s=1, cpu_time_s=2, memory_bytes=256 * MIB))


async def test_where_the_init_is_asked_there_are_never_more_than_the_limit(
    executor: ExecutorClient, level: Level
) -> None:
    if not level.landlock or level.version >= landlock.SCOPES:
        pytest.skip("a control group, or the init's looks, count them")
    code = """
import threading
for n in range(200):
    if n % 2: threading.Thread(target=time.sleep, args=(99,)).start()
    elif os.fork() == 0: time.sleep(99)
    os.write(1, b".")
"""
    result = await contained(executor, code, Limits(processes=32, wall_time_s=20))
    assert result.outcome is Outcome.PROCESS_LIMIT, result
    assert len(result.stdout.data) == 31  # and itself


async def test_many_zombies_are_only_its_own(executor: ExecutorClient) -> None:
    code = """
n = 0
try:
    while n < 5000:
        if os.fork() == 0: os._exit(0)
        n += 1
except OSError: pass
print(n < 5000)
"""
    result = await contained(executor, code, Limits(processes=32, wall_time_s=20))
    assert result.outcome is Outcome.PROCESS_LIMIT or result.stdout.data == b"True\n"


async def test_a_kind_program_may_start_many_processes_one_after_the_other(executor: ExecutorClient) -> None:
    code = "import os\nfor _ in range(300):\n    if os.fork() == 0: os._exit(0)\n    os.wait()\nprint('fine')"
    result = await executor.execute(code, limits=Limits(processes=8, wall_time_s=min(60 * SLOWNESS, 600)))
    assert result.stdout.data == b"fine\n", (result.outcome, result.stderr.text)


MEMORY = table(r"""
=== heap
x = []
while True: x.append(bytearray(1 << 20))
=== many_processes
for _ in range(3): os.fork()
x = bytearray(60 << 20)
time.sleep(60)
=== mmap
import mmap
x = []
while True:
    m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m[:] = bytes(1 << 20); x.append(m)
""")


@pytest.mark.parametrize("name", MEMORY)
async def test_memory_is_bounded(executor: ExecutorClient, name: str) -> None:
    result = await contained(executor, MEMORY[name], Limits(memory_bytes=128 * MIB, wall_time_s=30, cpu_time_s=30))
    assert result.outcome is Outcome.MEMORY_LIMIT or b"MemoryError" in result.stderr.data, result


@pytest.mark.parametrize("folder", ["/tmp", ".", "/dev/shm"])
async def test_disk_is_bounded(executor: ExecutorClient, level: Level, folder: str) -> None:
    if level.landlock:
        pytest.skip("there is no bound for all files together, and /tmp and /dev/shm are closed")
    code = f"""
try:
    for n in range(1000): open(f"{folder}/{{n}}", "wb").write(bytes(1 << 20))
except OSError as error: print(error.strerror, n < 40)
"""
    result = await contained(executor, code, Limits(disk_bytes=32 * MIB, wall_time_s=30, memory_bytes=1 << 30))
    assert result.stdout.data == b"No space left on device True\n"


async def test_what_connections_hold_is_bounded(executor: ExecutorClient, level: Level) -> None:
    if level.landlock:
        pytest.skip("there are no connections")
    code = """
import socket
listener, held, sent = socket.create_server(("127.0.0.1", 0)), [], 0
for _ in range(50):
    end = socket.create_connection(listener.getsockname())
    held += [end, listener.accept()[0]]
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    end.setblocking(False)
    try:
        while True: sent += end.send(bytes(1 << 16))
    except BlockingIOError: pass
print(sent < 50 << 18 or sent)
"""
    result = await contained(executor, code, Limits(memory_bytes=128 * MIB, wall_time_s=30))
    assert result.stdout.data == b"True\n"


async def test_one_file_is_bounded(executor: ExecutorClient) -> None:
    code = "f = open('x', 'wb')\ntry:\n    f.write(bytes(3 << 20)); f.flush()\nexcept OSError as e: print(e.strerror)"
    result = await contained(executor, code, Limits(file_bytes=MIB, wall_time_s=30))
    assert result.stdout.data == b"File too large\n"


async def test_inodes_are_bounded(executor: ExecutorClient, level: Level) -> None:
    if level.landlock:
        pytest.skip("there is no bound for the number of files")
    code = (
        "n = 0\ntry:\n    while n < 10**5: os.symlink('x', f'/tmp/{n}'); n += 1\nexcept OSError as e: print(e.strerror)"
    )
    result = await contained(executor, code, Limits(wall_time_s=60))
    assert result.stdout.data == b"No space left on device\n"


async def test_deep_folders_and_long_names_are_cleared_away(executor: ExecutorClient) -> None:
    code = """
import os
for n in range(2000): os.mkdir("d"); os.chdir("d")
for n in range(200): open(chr(0x4e00 + n) * 80, "w").close()
os.mkdir("closed"); os.chmod("closed", 0)
print("made")
"""
    for _ in range(3):
        assert (await executor.execute(code, limits=Limits(wall_time_s=60))).stdout.data == b"made\n"
        assert await printed(executor, "print(sorted(os.listdir('.')))") == "['main.py']\n"


async def test_a_giant_file_that_is_asked_for_is_not_read(executor: ExecutorClient) -> None:
    code = "import os\nf = open('giant', 'wb'); f.truncate(1 << 30); f.seek(0, 2)\nprint(os.stat('giant').st_size)"
    limits = Limits(file_bytes=1 << 30, return_bytes=MIB, wall_time_s=30)
    result = await executor.execute(code, return_paths=["giant"], limits=limits)
    assert (result.files[0].status, result.files[0].size_bytes) == (FileStatus.TOO_LARGE, 1 << 30), result


FLOODS = table(r"""
=== stdout
while True: os.write(1, b'x' * 65536)
=== stderr
while True: os.write(2, b'\xff' * 65536)
=== children
for _ in range(3): os.fork()
while True: os.write(1, b'x' * 65536)
=== small_writes
while True: os.write(1, b'x')
""")


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_cut_and_ended(executor: ExecutorClient, name: str) -> None:
    # Small writes take very long to become too many: they are ended by another limit, here by that of CPU time.
    small = name == "small_writes"
    limits = Limits(output_bytes=1000, wall_time_s=3, cpu_time_s=1 if small else 30)
    result = await contained(executor, FLOODS[name], limits)
    others = (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT) if small else (Outcome.TIME_LIMIT,)
    assert result.outcome in (Outcome.OUTPUT_LIMIT, *others), result
    output = result.stderr if name == "stderr" else result.stdout
    assert (len(output.data), output.truncated) == (1000, True)


KERNEL_OBJECTS = table(r"""
=== descriptors
try:
    while True: x.append(os.open('/dev/null', 0))
=== pipes
try:
    while True: x.append(os.pipe())
=== epolls
import select
try:
    while True: x.append(select.epoll())
=== sockets
try:
    while True: x.append(socket.socketpair())
=== memfds
try:
    while True: x.append(os.memfd_create('x'))
=== inotify
import ctypes; l = ctypes.CDLL(None, use_errno=True)
try:
    while True:
        if l.inotify_init() < 0: raise OSError
=== timers
import ctypes; l = ctypes.CDLL(None, use_errno=True)
try:
    for _ in range(5000):
        if l.timerfd_create(0, 0) < 0: raise OSError
    raise OSError
=== mappings
import mmap
try:
    while True: x.append(mmap.mmap(-1, 4096))
=== locked_memory
import ctypes; l = ctypes.CDLL(None, use_errno=True)
try:
    if l.mlockall(3) < 0: raise OSError
    raise ValueError
=== message_queues
import ctypes; l = ctypes.CDLL(None, use_errno=True)
try:
    for n in range(10**4):
        if l.mq_open(b'/q%d' % n, 0o102, 0o600, 0) < 0: raise OSError
    raise ValueError
=== pending_signals
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
import ctypes; l = ctypes.CDLL(None, use_errno=True)
try:
    for n in range(10**6):
        if l.sigqueue(os.getpid(), 40, 0) < 0: raise OSError
=== file_locks
import fcntl
try:
    f = open('l', 'w')
    for n in range(3000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * n)
    raise OSError
=== attributes
try:
    for n in range(10**5): os.setxattr('main.py', f'user.{n}', b'x' * 1000)
""")


@pytest.mark.parametrize("name", KERNEL_OBJECTS)
async def test_kernel_objects_are_bounded(executor: ExecutorClient, name: str) -> None:
    code = f"x = []\n{KERNEL_OBJECTS[name]}\nexcept (OSError, MemoryError): print('bounded', flush=True)\nos._exit(0)"
    limits = Limits(open_files=128, wall_time_s=60 * SLOWNESS, memory_bytes=256 * MIB)
    result = await contained(executor, code, limits)
    assert result.stdout.data == b"bounded\n" or result.outcome is Outcome.MEMORY_LIMIT, result


async def test_a_large_pipe_is_only_its_own(executor: ExecutorClient) -> None:
    code = f"import fcntl\ntry: fcntl.fcntl(1, 1031, 1 << 20)\nexcept OSError: pass\nprint('{MARKER}' * 10)"
    result = await contained(executor, code, Limits(wall_time_s=20))
    assert result.stdout.text == MARKER * 10 + "\n"


async def test_cpu_is_bounded_over_all_processes(executor: ExecutorClient) -> None:
    result = await contained(
        executor, "os.fork(); os.fork()\nwhile True: pass", Limits(cpu_time_s=1, wall_time_s=30, processes=16)
    )
    assert result.outcome is Outcome.CPU_LIMIT
