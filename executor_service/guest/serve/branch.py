"""Forks the interpreter of a session in place: a second one goes on from the state of this moment.

The new process belongs to the init of the box and not to the one it was forked from; it leads a session of its own,
has its own standard streams, channel, copy of the work folder and workspace, and, where the kernel offers that, can
signal and look into its own processes alone. It shares with its family: the process limit, memory limit and uid, /tmp,
the list of processes, and the positions of files that were open.
"""

from __future__ import annotations

import gc
import os
import sys
import threading

from executor_service.guest.serve.work_folder import WORKSPACE
from executor_service.guest.walls import landlock
from executor_service.guest.walls.copies import UNBOUNDED, Copy
from executor_service.guest.warm.seeds import reseed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HANDLES = 3
"""Descriptors that the server gives for each branch: the other end of its channel, its stdout and its stderr."""

COPY = "copy"
"""Instead of the folder of a branch's workspace: it has to copy that of its parent."""


class Folders:
    """Folders of the interpreter that is forked; an empty workspace: it has none."""

    def __init__(self, work: str, workspace: str, temporary: str) -> None:
        self.work = work
        self.workspace = workspace
        self.temporary = temporary


def obstacle() -> str:
    """Why this process can't be forked now without losing something; empty: it can."""
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        threads = threading.active_count()
    if threads > 1:
        others = f"{threads - 1} other thread{'s' if threads > 2 else ''}"
        return f"it has {others}, and only the thread that forks would go on"
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return ""
    return "it has child processes that it has not waited for"


def fork() -> tuple[bool, str]:
    """(True, "") in the branch; (False, "") in the parent; (False, why) where there is no branch.

    Forks twice, so that the branch becomes a child of the init and not of the code's own process.
    """
    flush()
    gc.freeze()  # a collection would write to every object, and so copy every page
    try:
        helper = os.fork()
    except OSError as error:
        return False, f"it can't be forked: {error}"
    if helper:
        status = os.waitpid(helper, 0)[1]
        return False, "" if status == 0 else "it can't be forked a second time: too little memory or too many processes"
    code = 1
    try:
        if os.fork() == 0:
            code = -1
            return True, ""
        code = 0
    except OSError:
        pass
    finally:
        if code >= 0:
            os._exit(code)
    return False, ""  # never reached: the helper has ended


def settle(channel: int, handles: Sequence[int], folders: Folders, workspace: str) -> tuple[str, str]:
    """In the branch: takes up its own ends and folders. Returns work folder and workspace. OSError where that is not
    possible."""
    data, out, err = handles
    for source, target in ((out, 1), (err, 2)):
        os.dup2(source, target)
    os.dup2(data, channel, inheritable=False)
    for handle in handles:
        os.close(handle)
    os.setsid()
    if landlock.abi() >= landlock.SCOPES:
        landlock.scope_signals()
    reseed()
    here = os.getcwd()
    own = _copied(folders.work, folders.temporary)
    moved = {folders.work: own}
    if os.environ.get("HOME") == folders.work:
        os.environ["HOME"] = own
    if workspace and folders.workspace:
        workspace = _copied(folders.workspace, folders.temporary) if workspace == COPY else workspace
        moved[folders.workspace] = workspace
        os.environ[WORKSPACE] = workspace
        sys.path[:] = [_moved(entry, moved) if isinstance(entry, str) else entry for entry in sys.path]
        sys.path_importer_cache.clear()
    if (there := _moved(here, moved)) != here:
        os.chdir(there)
    return own, workspace


def _copied(folder: str, temporary: str) -> str:
    own = os.path.join(temporary, f"branch-{os.urandom(8).hex()}")
    os.mkdir(own, 0o700)
    source = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        Copy(UNBOUNDED, -1, most_entries=UNBOUNDED).run(source, own)
    finally:
        os.close(source)
    return own


def _moved(path: str, folders: dict[str, str]) -> str:
    """Returns the new place of `path`, if it is below one of `folders` (old -> new), which have moved."""
    for here, there in folders.items():
        if path == here or path.startswith(f"{here}/"):
            return there + path[len(here) :]
    return path


def flush() -> None:
    """Flushes the standard streams: both processes would write what is in their buffers."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: S110 - the code has taken it away; then nothing of ours is in it
            pass
