"""Counting the processes below one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from executor_service.guest.walls import tree

CODE = """
import os, threading, time
reader, writer = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        if os.fork():
            time.sleep(60)
        os.setsid()
        os.write(writer, b"x")
        time.sleep(60)
def branch():
    if os.fork() == 0:
        os.write(writer, b"x")
        time.sleep(60)
    time.sleep(60)
threading.Thread(target=branch, daemon=True).start()
for _ in range(5): os.read(reader, 1)
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
    assert tree.count_tasks(root, BELOW - 1) == tree.count_tasks(root, BELOW) == BELOW


def test_it_looks_at_no_more_than_it_must(root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    threads = tree._threads

    def note(pid: int) -> list[str]:
        seen.append(pid)
        return threads(pid)

    monkeypatch.setattr(tree, "_threads", note)
    assert tree.count_tasks(root, 3) > 3
    assert len(seen) <= 5


def test_who_is_gone_has_nobody() -> None:
    assert tree.count_tasks(2**22 - 1, 0) == 0


RESTLESS = """
import os, resource, signal, sys, time
from executor_service.guest.walls import tree
tree.adopt()
uid = 213_000 if os.getuid() == 0 else os.getuid()
resource.setrlimit(resource.RLIMIT_NPROC, [tree.tasks_of(uid) + 400] * 2)  # as programs have one
signal.signal(signal.SIGCHLD, lambda *_: None)
end = time.monotonic() + 30
def ones_child_goes_on():
    while time.monotonic() < end and os.fork() == 0: pass
    os._exit(0)
def many_sleep():
    for _ in range(20):
        if os.fork() == 0: os.setsid(); time.sleep(600)
    time.sleep(600)
def a_thread_is_left():
    import ctypes, threading
    threading.Thread(target=time.sleep, args=(600,)).start()
    ctypes.CDLL(None).syscall({exit}, 0)  # of the first thread alone
for what in [ones_child_goes_on] * 4 + [many_sleep, a_thread_is_left]:
    if os.fork() == 0: os.setresuid(uid, uid, uid); what()
time.sleep(0.5)
print(len(tree.descendants(os.getpid())) > 20, flush=True)
tree.kill_all(os.getpid())
count = 0
while True:
    try: os.waitpid(-1, os.WNOHANG)[0] or sys.exit("somebody lives")
    except ChildProcessError: break
    count += 1
print(count > 20, tree.descendants(os.getpid()))
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a call is that of x86-64")
@pytest.mark.parametrize("offered", [True, False])
def test_killing_all_reaches_those_that_are_made_meanwhile(offered: bool) -> None:
    """Twenty-odd processes that sleep, four that each time leave another behind, one whose first thread has ended."""
    code = RESTLESS.replace("{exit}", "60")
    if not offered:
        code = code.replace("tree.adopt()", "tree.adopt(); tree._lists_children = lambda _: False")
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
        assert done.stdout == "True\nTrue []\n", done.stderr


def test_below_is_what_has_the_process_for_an_ancestor(root: int) -> None:
    for pid in tree.descendants(root):
        assert tree.is_below(pid, root)
    assert not tree.is_below(root, root)
    assert not tree.is_below(os.getpid(), root)
    assert not tree.is_below(1, root)
