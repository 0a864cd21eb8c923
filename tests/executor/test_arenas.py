"""Placement of a zygote's objects in memory, in a separate interpreter."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from executor_service.guest.warm import arenas

_CODE = """
import gc, sys
from executor_service.guest.warm.arenas import gathered

def heap():
    lines = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
    return int(lines[0][0].split("-")[0], 16), int(lines[-1][0].split("-")[1], 16)

def within(objects):
    start, end = heap()
    return sum(start <= id(each) < end for each in objects) / len(objects)

with gathered():
    inside = [[i] for i in range(300_000)]
outside = [[i] for i in range(300_000)]
print(within(inside[100_000:]) > 0.99, within(outside[100_000:]) < 0.01)  # but for room that there was before
text = [bytes(1000 + i % 3000) for i in range(20_000)]  # from the same heap, between what was gathered
for _ in range(3):
    del inside[:], outside[:]
    gc.collect()
    inside = [[i] for i in range(400_000)]
    text = [bytes(1000 + i % 3000) for i in range(20_000)] + [bytearray(4 << 20)]
    outside = [{i: i} for i in range(100_000)]
    assert [each[0] for each in inside] == list(range(400_000))
    assert all(not any(each[:1]) for each in text)
print("whole")
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="elsewhere nothing is gathered")
def test_objects_of_a_zygote_lie_together_and_others_do_not() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("True True\nwhole\n", 0), done.stderr


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.guest.warm.arenas.ctypes.CDLL", lambda _: object())
    with arenas.gathered():
        assert [[i] for i in range(100_000)][-1] == [99_999]
