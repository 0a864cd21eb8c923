"""Reads what /proc says of processes, and which are below one where no namespace says it: programs can't read it there.

A box's init is the subreaper of everything in its box, so whatever a program starts stays below the init.
"""

from __future__ import annotations

import os
import resource
import signal
import time

from executor_service.guest.walls import syscalls as sys_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_STATE, PARENT, GROUP, SESSION = range(4)
"""Positions in /proc/PID/stat, counted from the state, which follows the name in parentheses."""
_STAT_BYTES = 4096
_PAGE = os.sysconf("SC_PAGE_SIZE")
_DEAD = (b"Z", b"X")
_PAUSE_S = 0.0005
_DEEPEST = 1 << 16
"""Parents that are gone through at most: there are no more processes."""


def adopt() -> None:
    """From here on orphans below this process become its children."""
    sys_.prctl(sys_.PR_SET_CHILD_SUBREAPER, 1)


def stat_fields(process: int | str) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on; none if there is no such process, or no /proc."""
    try:
        handle = os.open(f"/proc/{process}/stat", os.O_RDONLY | os.O_CLOEXEC)  # `open` takes three times as long
        try:
            return os.read(handle, _STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(handle)
    except OSError:
        return []


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process; 0 if that is not known. It costs the kernel less than `stat_fields`."""
    try:
        handle = os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(handle, _STAT_BYTES).split()[1]) * _PAGE
        finally:
            os.close(handle)
    except (OSError, IndexError):
        return 0


def waited_s() -> float:
    """CPU seconds of the children of this process that it has waited for."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return waited.ru_utime + waited.ru_stime


def children(parent: int) -> list[int]:
    """The processes right below `parent`."""
    return _by_parent().get(parent, [])


def descendants(root: int) -> list[int]:
    """Every process below `root`, the dead that nobody has waited for included."""
    by_parent = _by_parent()
    return _walk([root], lambda pid: by_parent.get(pid, []))


def now_below(root: int) -> list[int]:
    """The same, sooner, where the kernel lists children. Some may be left out where others end at that moment."""
    return _walk([root], _lister(root))


def is_below(pid: int, root: int) -> bool:
    """Says whether a process is below `root`. A process is not if one on the way up died."""
    for _ in range(_DEEPEST):
        if pid <= 1 or not (fields := stat_fields(pid)):
            return False
        pid = int(fields[PARENT])
        if pid == root:
            return True
    return False


def kill_all(root: int) -> None:
    """In `root`, where no domain bounds `kill(-1)`: kills everything below and returns when only the dead are left.

    It waits for nobody before, so that the dead keep their numbers, and count among the processes that its user may
    have: nobody can fork for ever. All are dead when those right below are, twice the same: what lives is below one
    that lives, or has become one of them meanwhile. Numbers of others than those right below can be given to somebody
    else at any moment: a descriptor of the process is taken before the look.
    """
    before: list[int] | None = None
    dead: set[int] = set()
    killed: set[int] = set()
    while True:
        below = _lister(root)
        mine = below(root)
        living = [pid for pid in mine if pid not in dead and _lives(pid)]
        dead.update(mine)
        dead.difference_update(living)
        if not living and mine == before:
            return
        before = None if living else mine
        others = _walk(living, below)
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        for pid in others:
            _kill_below(pid, root)
        if living and killed.issuperset(living):
            time.sleep(_PAUSE_S)  # until they have ended
        killed.update(living)


def _kill_below(pid: int, root: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # it has ended
    try:
        if is_below(pid, root):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def count_tasks(root: int, most: int) -> int:
    """Processes and threads below `root`, as far as they have to be looked at to know that they are more than `most`:
    whoever has to act on it competes with all of them for a processor."""
    if not _lists_children(root):
        return sum(len(_threads(pid)) for pid in descendants(root))
    count, todo = 0, _children(root, _threads(root))
    while todo and count <= most:
        pid = todo.pop()
        threads = _threads(pid)
        count += len(threads)
        todo += _children(pid, threads)
    return count


def _walk(pids: list[int], below: Callable[[int], list[int]]) -> list[int]:
    found: list[int] = []
    todo = list(pids)
    while todo:
        those = below(todo.pop())
        found += those
        todo += those
    return found


def _lister(root: int) -> Callable[[int], list[int]]:
    """Returns a function that lists the processes right below one."""
    if _lists_children(root):
        return lambda pid: _children(pid, _threads(pid))
    by_parent = _by_parent()
    return lambda pid: by_parent.get(pid, [])


def _lists_children(pid: int) -> bool:
    """False: a kernel without CONFIG_PROC_CHILDREN."""
    return os.path.exists(f"/proc/{pid}/task/{pid}/children")


def _lives(pid: int) -> bool:
    """Says whether anything of it runs: a process whose first thread has ended appears as dead."""
    fields = stat_fields(pid)
    return bool(fields) and (fields[_STATE] not in _DEAD or len(_threads(pid)) > 1)


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
        if name.isdigit() and (fields := stat_fields(name)):
            below.setdefault(int(fields[PARENT]), []).append(int(name))
    return below
