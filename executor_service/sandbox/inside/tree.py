"""The processes below one, where no namespace says which they are: read from /proc, which programs can't.

A box's init is the subreaper of everything in its box, so whatever a program starts stays below the init.
"""

from __future__ import annotations

import ctypes
import os

_PR_SET_CHILD_SUBREAPER = 36
_PARENT = 1
"""Position in /proc/PID/stat after the name."""


def adopt() -> None:
    """From here on orphans below this process become its children."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children(parent: int) -> list[int]:
    """The processes right below `parent`."""
    return _by_parent().get(parent, [])


def descendants(root: int) -> list[int]:
    """Every process below `root`, the dead that nobody has waited for included."""
    below = _by_parent()
    found: list[int] = []
    todo = [root]
    while todo:
        those = below.get(todo.pop(), [])
        found += those
        todo += those
    return found


def more_tasks(root: int, most: int) -> bool:
    """Whether more than `most` processes and threads are below `root`. Looks at no more than it must: who has to act on
    it competes with all of them for a processor."""
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):  # a kernel without CONFIG_PROC_CHILDREN
        return sum(len(_threads(pid)) for pid in descendants(root)) > most
    count, todo = 0, _children(root, _threads(root))
    while todo and count <= most:
        pid = todo.pop()
        threads = _threads(pid)
        count += len(threads)
        todo += _children(pid, threads)
    return count > most


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _children(pid: int, threads: list[str]) -> list[int]:
    """Some may be left out where others end at that moment."""
    found: list[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def tasks_of(uid: int) -> int:
    """Processes and threads of a user."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return count


def _by_parent() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[_PARENT])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(name))
    return below
