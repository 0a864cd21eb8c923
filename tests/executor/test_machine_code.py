"""Machine code in huge pages, in an interpreter of its own: the same bytes at the same addresses, fewer page faults."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from executor_service.sandbox.inside import machine_code, plays
from executor_service.sandbox.inside.syscalls import HUGE

_CODE = """
import ctypes, gc, json, os, re, resource, sys
from executor_service.sandbox.inside import machine_code, plays
from executor_service.sandbox.inside.syscalls import HUGE

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
memory = sum(each.end - each.start for each in plays.mappings() if not each.file and each.rights == b"r-xp")
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


def test_where_there_is_no_huge_page_nothing_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "collapse", lambda _start, _end: 0)
    before = [(each.start, each.end, each.rights, each.file) for each in plays.mappings() if each.file]
    assert machine_code.enlarge(lambda: sorted(map(str, range(100)))) == 0
    assert [(each.start, each.end, each.rights, each.file) for each in plays.mappings() if each.file] == before


def test_code_that_hardly_anybody_runs_is_left_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_WORTH", HUGE // plays.PAGE + 1)
    assert machine_code.enlarge(lambda: sorted(map(str, range(100)))) == 0


def test_another_processor_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_PROCESSOR", "none such")
    assert machine_code.enlarge(lambda: pytest.fail("nothing is to be played")) == 0
