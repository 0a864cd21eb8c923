"""Changes that one use makes to its private folders, or leaves in its namespaces, are gone for the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor_service import ExecutorClient, Outcome
from tests.executor.levels import LEVELS
from tests.executor.servers import Server

LOOK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for path in ("/tmp", "/dev/shm", "/sandbox"):
    facts, room = os.stat(path), os.statvfs(path)
    recent = facts.st_mtime > 1e9
    print(path, oct(facts.st_mode), facts.st_uid == os.getuid(), facts.st_nlink, sorted(os.listdir(path)),
          recent, os.listxattr(path), room.f_blocks, room.f_bfree, room.f_files, room.f_ffree)
print(libc.shmget(0x666, 0, 0), libc.semget(0x666, 0, 0), libc.msgget(0x666, 0))
"""
CHANGES = {
    "nothing": "print(1)",
    "a file": "open('/tmp/left', 'w').write('x' * 9999)",
    "a file that is gone": "import os; open('/tmp/left', 'w').close(); os.unlink('/tmp/left')",
    "a folder in /dev/shm": "import os; os.mkdir('/dev/shm/left')",
    "beside the program": "open('beside', 'w').close()",
    "in the program's place": "import os; os.unlink('main.py'); os.mkdir('main.py')",
    "no program": "import os; os.unlink('main.py')",
    "another link to the program": "import os; os.link('main.py', 'also')",
    "a larger program": "open('main.py', 'a').write('#' * 100_000)",
    "a mode": "import os; os.chmod('/tmp', 0o700)",
    "a mode of the work folder": "import os; os.chmod('/sandbox', 0)",
    "an attribute": "import os; os.setxattr('/tmp', 'user.left', b'x')",
    "times": "import os; os.utime('/dev/shm', (1, 1))",
    "shared memory": "import ctypes; print(ctypes.CDLL(None).shmget(0x666, 4096, 0o1600))",
    "semaphores": "import ctypes; print(ctypes.CDLL(None).semget(0x666, 1, 0o1600))",
    "a message queue": "import ctypes; print(ctypes.CDLL(None).msgget(0x666, 0o1600))",
}
NAMESPACES = [level for level in LEVELS if not level.landlock]


@pytest.fixture(scope="module", params=NAMESPACES, ids=str)
def one_box(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with so few boxes that each is used again at once."""
    with request.param.running("max_concurrent=1", "spare_boxes=0") as server:
        yield server


async def look(executor: ExecutorClient) -> str:
    result = await executor.execute(LOOK)
    assert result.ok, result
    return result.stdout.text


@pytest.mark.parametrize("change", CHANGES)
async def test_the_next_use_finds_everything_as_the_first_one_did(one_box: Server, change: str) -> None:
    async with ExecutorClient(one_box.target) as executor:
        before = await look(executor)
        for _ in range(4):  # in every box
            result = await executor.execute(CHANGES[change])
            assert result.outcome is Outcome.FINISHED
            assert await look(executor) == before
    assert before.endswith("-1 -1 -1\n")


TRACES = """
import ctypes, fcntl, os, socket, struct
class Entry(ctypes.Structure):
    _fields_ = [("inode", ctypes.c_uint64), ("offset", ctypes.c_int64), ("size", ctypes.c_uint16)]
def traces():
    room = ctypes.create_string_buffer(4096)
    folder = os.open(".", os.O_RDONLY)
    size = libc.syscall(217, folder, room, 4096)  # getdents64
    flags, at, last = bytearray(8), 0, 0
    fcntl.ioctl(folder, 0x80086601, flags)  # FS_IOC_GETFLAGS
    while at < size:
        entry = Entry.from_buffer(room, at)
        last, at = max(last, entry.offset if entry.offset < 0x7FFFFFFF else 0), at + entry.size
    made = libc.shmget(0, 1, 0o600), libc.semget(0, 1, 0o600), libc.msgget(0, 0o600)
    shared = [(number >> 15) * 64 + number % (1 << 15) < 500 for number in made]
    packets = open("/proc/self/net/snmp").read() + open("/proc/self/net/snmp6").read()
    return last < 1000, os.stat("main.py").st_ino < 1000, bytes(flags[:4]).hex(), shared, hash(packets)
libc = ctypes.CDLL(None, use_errno=True)
"""
LEAVE_TRACES = {
    "names": "for i in range(2000): open('x', 'w').close(); os.unlink('x')",
    "links": "for i in range(2000): os.link('main.py', 'x'); os.unlink('x')",
    "files without names": "for i in range(2000): os.close(os.open('/tmp', os.O_TMPFILE | os.O_RDWR))",
    "flags": "fcntl.ioctl(os.open('.', os.O_RDONLY), 0x40086602, struct.pack('q', 0x80))",
    "memory that is gone": "for i in range(1000): libc.shmctl(libc.shmget(0, 1, 0o600), 0, None)",
    "all the memory there may be": "while libc.shmget(0, 1, 0o600) >= 0: pass",
    "semaphores that are gone": "for i in range(1000): libc.semctl(libc.semget(0, 1, 0o600), 0, 0)",
    "queues that are gone": "for i in range(1000): libc.msgctl(libc.msgget(0, 0o600), 0, None)",
    "packets": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('::1', 9))",
    "no route": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect_ex(('192.0.2.1', 9))",
}


@pytest.mark.parametrize("trace", LEAVE_TRACES)
async def test_what_has_come_and_gone_leaves_no_trace(one_box: Server, trace: str) -> None:
    """Counters of the kernel, and what it gives in turn: offsets and inodes of folders, numbers of shared memory."""
    look = TRACES + "print(traces())"
    async with ExecutorClient(one_box.target) as executor:
        before = await executor.execute(look)
        assert before.stdout.text.startswith("(True, True, '00000000', [True, True, True], "), before
        for _ in range(4):  # in every box
            assert (await executor.execute(TRACES + LEAVE_TRACES[trace])).outcome is Outcome.FINISHED
            after = await executor.execute(look)
            assert (after.ok, after.stdout.text) == (True, before.stdout.text), after


@pytest.mark.xfail(strict=True, reason="folders in which nothing was changed are kept")
async def test_inode_numbers_begin_anew(one_box: Server) -> None:
    code = "import os; print(os.stat('main.py').st_ino)"
    async with ExecutorClient(one_box.target) as executor:
        assert len({(await executor.execute(code)).stdout.text for _ in range(6)}) == 1


NAMES = "import os; print(*(os.readlink(f'/proc/self/ns/{kind}') for kind in ('net', 'ipc')))"


async def test_uses_that_leave_nothing_save_the_next_ones_new_namespaces(one_box: Server) -> None:
    async with ExecutorClient(one_box.target) as executor:
        names = {(await executor.execute(NAMES)).stdout.text for _ in range(8)}
    assert len(names) <= 4  # one of each box
