"""Machine code in huge pages, in an interpreter of its own: the same bytes at the same addresses, fewer page faults."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

_CODE = """
import ctypes, gc, json, os, re, resource, sys
from executor_service.guest.warm import machine_code, page_probe
from executor_service.guest.walls.syscalls import HUGE

def program():
    json.loads(json.dumps({"a": [1, 2.5, None]})), re.sub("a+", "b", "aab"), sorted(map(str, range(100)))
    exec(compile("def f(): return [i for i in range(9)]", "x", "exec"), {})

def faults():
    reader, writer = os.pipe()
    if os.fork() == 0:
        program()
        os.write(writer, str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt).encode())
        os._exit(0)
    os.wait()
    return int(os.read(reader, 20))

program()
gc.freeze()
blocks = sorted(machine_code._movable())
bytes_before = [ctypes.string_at(block, HUGE) for block in blocks]
faults_before = faults()
moved = machine_code.enlarge(program)
whole = bytes_before == [ctypes.string_at(block, HUGE) for block in blocks]
faults_after = faults()
memory = sum(each.end - each.start for each in page_probe.mappings() if not each.file and each.rights == b"r-xp")
again = machine_code.enlarge(program)
for _ in range(20):
    program()
    gc.collect()
print(json.dumps({
    "blocks": len(blocks), "moved": moved, "whole": whole, "before": faults_before, "after": faults_after,
    "again": again, "memory": memory // HUGE,
}))
"""


@pytest.fixture(scope="module")
def done() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    if not found["blocks"]:
        pytest.skip("no library of this interpreter has a whole huge page of code")
    if not found["moved"]:
        pytest.skip("no x86-64, or this kernel has no huge page to give or can't be asked: MADV_COLLAPSE, Linux 6.1")
    return found


def test_a_fork_finds_the_code_that_it_runs(done: dict[str, Any]) -> None:
    assert done["after"] < done["before"] - 8 * done["moved"], done


def test_every_byte_is_where_it_was(done: dict[str, Any]) -> None:
    assert done["whole"]


def test_only_what_is_run_is_moved_and_only_once(done: dict[str, Any]) -> None:
    assert done["moved"] <= done["blocks"]
    assert done["memory"] == done["moved"]
    assert done["again"] == 0


@pytest.mark.parametrize(
    "without",
    [
        "machine_code.collapse = lambda start, end: asked.append(start) or 0",
        "machine_code._mprotect = lambda *_: asked.append(0) or -1",
        "machine_code._WORTH = HUGE // page_probe.PAGE + 1; asked.append(0)",
        "machine_code._PROCESSOR = 'none such'; asked.append(0)",
    ],
    ids=["no huge page", "not to be run", "hardly anybody runs it", "another processor"],
)
def test_otherwise_nothing_is_different(without: str, done: dict[str, Any]) -> None:
    assert done["moved"]  # so the same program has something to be moved
    start = _CODE.index("blocks = sorted")
    code = f"""{_CODE[:start]}
def files():
    return [(each.start, each.end, each.rights, each.file) for each in page_probe.mappings() if each.file]

asked = []
{without}
before = files()
print(machine_code.enlarge(program), len(asked) > 0, files() == before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("0 True True\n", "")
