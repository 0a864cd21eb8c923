"""What a use changes about its private folders, or leaves in its namespaces, is not there for the next one."""

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


@pytest.mark.xfail(strict=True, reason="folders in which nothing was changed are kept")
async def test_inode_numbers_begin_anew(one_box: Server) -> None:
    code = "import os; print(os.stat('main.py').st_ino)"
    async with ExecutorClient(one_box.target) as executor:
        assert len({(await executor.execute(code)).stdout.text for _ in range(6)}) == 1


NAMES = "import os; print(*(os.readlink(f'/proc/self/ns/{kind}') for kind in ('net', 'ipc')))"


async def test_uses_that_leave_nothing_save_the_next_ones_new_namespaces(one_box: Server) -> None:
    async with ExecutorClient(one_box.target) as executor:

        async def boxes() -> dict[str, str]:
            """Of each box, by its network: the IPC namespace."""
            return dict([(await executor.execute(NAMES)).stdout.text.split() for _ in range(4)])

        before, after = await boxes(), await boxes()
    known = before.keys() & after.keys()
    assert known
    assert {box: before[box] for box in known} == {box: after[box] for box in known}
