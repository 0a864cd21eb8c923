"""Free memory between the objects of a zygote, in a separate interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

_CODE = """
import gc, os, sys
from executor_service.guest.warm import fill_free_lists

def pages(objects):
    return {id(each) >> 12 for each in objects}

def make(count):
    return [each for i in range(count) for each in (object(), 10**6 + i, bytes(50), bytes(300), [i], {i})]

kept = make(30_000)[::7]  # six of seven of each page are free
gc.collect()
first = make(2_000)
print(len(pages(first) & pages(kept)) > len(pages(first)) / 2)
del first
gc.collect()
filled = fill_free_lists.fill()
left = sum(size * count for size, count in fill_free_lists._holes())
new = make(2_000)
print(filled > 5 << 20, left < filled / 20, len(pages(new) & pages(kept)) < len(pages(new)) / 20)
print(len(pages(new)) * 4096 < 2 * sum(map(sys.getsizeof, new)))
"""


def ran(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_is_made_afterwards_lies_apart() -> None:
    assert ran(_CODE) == "True\nTrue True True\nTrue\n"


def test_an_interpreter_that_tells_nothing_is_left_alone() -> None:
    program = "from executor_service.guest.warm.fill_free_lists import fill; print(fill())"
    assert ran(program, PYTHONMALLOC="malloc") == "0\n"
    assert ran(f"import sys; del sys._debugmallocstats; {program}") == "0\n"
