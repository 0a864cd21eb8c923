"""Counting the processes below one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from executor_service.sandbox.inside import tree

CODE = """
import os, threading, time
pipe = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        if os.fork():
            time.sleep(60)
        os.setsid()
        time.sleep(60)
def branch():
    if os.fork() == 0: time.sleep(60)
    time.sleep(60)
threading.Thread(target=branch, daemon=True).start()
time.sleep(0.3)
print("made", flush=True)
time.sleep(60)
"""
BELOW = 10 + 1
"""Itself and its second thread, four children and theirs, and a child of the second thread."""


@pytest.fixture
def root() -> Iterator[int]:
    """A process whose only child is the first of a tree."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CODE!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        yield process.pid
        for pid in [*tree.descendants(process.pid), process.pid]:
            subprocess.run(["kill", "-9", str(pid)], check=False)


@pytest.mark.parametrize("offered", [True, False])
def test_processes_and_threads_are_counted(root: int, offered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not offered:
        monkeypatch.setattr("os.path.exists", lambda _: False)
    assert tree.more_tasks(root, BELOW - 1)
    assert not tree.more_tasks(root, BELOW)


def test_it_looks_at_no_more_than_it_must(root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    threads = tree._threads

    def note(pid: int) -> list[str]:
        seen.append(pid)
        return threads(pid)

    monkeypatch.setattr(tree, "_threads", note)
    assert tree.more_tasks(root, 3)
    assert len(seen) <= 5


def test_who_is_gone_has_nobody() -> None:
    assert not tree.more_tasks(2**22 - 1, 0)
