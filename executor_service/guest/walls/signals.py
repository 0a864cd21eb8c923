"""Whom a signal of the server reaches in a box: one process, its process group, or its whole tree."""

from __future__ import annotations

import os
import signal

from executor_service.guest.walls.tree import GROUP, PARENT, SESSION, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Whom = Literal["process", "group", "tree"]

_ROUNDS = 50
"""A tree is signalled until nobody new is found: processes can be started meanwhile, but hardly so often in a row."""


def kill_all() -> None:
    """SIGKILL to every process of the namespace, or of the domain that scopes signals, but this one."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def send_signal(pid: int, number: int, whom: Whom) -> None:
    """Sends it. Without effect where nobody is left, and never to the init."""
    if pid <= 1:
        return
    reached: set[int] = set()
    for _ in range(_ROUNDS):
        found = {pid} if whom == "process" else members(pid, whom)
        if found <= reached:
            return
        for each in found - reached:
            _kill(each, number)
        reached |= found


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (OSError, OverflowError):
        pass  # it is gone, belongs to somebody else, or can't be


def members(pid: int, whom: Whom) -> set[int]:
    """Process `pid` and, of the processes that can be seen, those of its group, or of its tree."""
    names = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    facts = {int(name): fields for name in names if (fields := stat_fields(name))}
    if whom == "group":
        return {pid} | {each for each, fields in facts.items() if int(fields[GROUP]) == pid}
    below: dict[int, list[int]] = {}
    for each, fields in facts.items():
        below.setdefault(int(fields[PARENT]), []).append(each)
    found: set[int] = set()
    todo = [pid, *(each for each, fields in facts.items() if int(fields[SESSION]) == pid)]
    while todo:
        each = todo.pop()
        if each > 1 and each not in found:
            found.add(each)
            todo += below.get(each, [])
    return found
