"""A box where there are no namespaces: Landlock, the system call filter, a folder of its own, and an init that adopts.

The init scopes signals to itself and what is below it, and adopts orphans: `kill(-1)` ends the box's processes and
nobody else's. Each worker nests a domain in which it may read the system, write one folder, and signal its own
processes. Where Landlock does not scope signals yet, the init kills those below it one by one, and is the supervisor of
the signals that they send.

Invariants: when `clear()` returns, nothing of the use is alive or on disk; the init ends everything when it is told to
end (SIGTERM), when its zygote dies, and when the server is gone. Only SIGKILL to the init leaves processes, and those
its zygote kills.
"""

from __future__ import annotations

import os
import signal
import sys

from executor_service.guest.walls import landlock, scratch, tree
from executor_service.guest.walls import syscalls as sys_
from executor_service.guest.walls.copies import copy_apart
from executor_service.guest.walls.signals import kill_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from executor_service.guest.protocol.spec import BoxSpec, Task, WorkspaceOrder
    from executor_service.guest.walls.confine import Confinement

_DEVICES = ("null", "zero", "full", "random", "urandom")
_FILES = (
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/mime.types",
    f"/etc/python3.{sys.version_info.minor}",
)
"""Paths that interpreters and C libraries read by themselves; nothing secret."""
_TEMPORARY = "/tmp"  # noqa: S108 - where programs look for it
_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "user.name",
    "GIT_CONFIG_VALUE_0": "sandbox",
    "GIT_CONFIG_KEY_1": "user.email",
    "GIT_CONFIG_VALUE_1": "sandbox@localhost",
}
"""Instead of /etc/gitconfig, which is the host's here and can't be read: who commits needs a name."""
_ROOM = 256
"""Processes and threads by which all programs of the server's user together may grow while one runs, where they share
the user: a backstop for the moments between two looks of the init, which counts those of a use."""


class BareInit:
    """A box's substitute for namespaces. The init makes it."""

    def __init__(self, spec: BoxSpec, owner: int | None) -> None:
        self._spec = spec
        self._owner = owner
        self._folder = ""
        self._others = 0
        """Processes and threads of our user before this use."""
        # SIGTERM and not SIGKILL, so that the init can take all with it.
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGTERM)
        sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)
        landlock.go_by(spec["landlock"])
        self.scoped = landlock.abi() >= landlock.SCOPES
        """True if the kernel keeps programs from signalling others."""
        if self.scoped:
            landlock.scope_signals()
        tree.adopt()

    def listen(self) -> None:
        """From here on SIGTERM is a byte in the init's wake-up pipe. A handler that raised could do so where nothing
        may be raised, as in what runs around a fork, and be lost."""
        signal.signal(signal.SIGTERM, _nothing)

    @property
    def work(self) -> str:
        """The work folder of this use."""
        return f"{self._folder}/{scratch.WORK}"

    @property
    def _temporary(self) -> str:
        return f"{self._folder}/{scratch.TEMPORARY}"

    @property
    def _workspace(self) -> str:
        return f"{self._folder}/{scratch.WORKSPACE}"

    def mount(self, order: WorkspaceOrder) -> float:
        """A copy stands for the workspace of this use; it goes with the folder. CPU seconds that copying took."""
        return copy_apart(order, self._spec["store"], self._workspace, self._owner)

    def branch(self, number: int, parent: int) -> int:
        """Never asked for: a branch copies its parent's copy itself."""
        raise NotImplementedError

    def prepare(self) -> None:
        self._folder = scratch.make(self._spec["scratch"], self._owner)
        self._others = 0 if self._owner else tree.tasks_of(os.getuid())

    def clear(self) -> None:
        """A child removes the folder: the init must not learn names of files, because workers are forked from it."""
        child = os.fork()
        if child == 0:
            try:
                scratch.remove(self._folder)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        self._folder = ""

    def abandon(self) -> NoReturn:
        """Ends the box and everything in it."""
        self.end_all()
        os._exit(0)

    def end_all(self) -> None:
        """Nothing of the use is alive or on disk afterwards."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.kill_all()
        _wait_for_all()
        if self._folder:
            self.clear()

    def kill_all(self) -> None:
        """SIGKILL to every process of the box but its init."""
        if self.scoped:
            kill_all()
        else:
            tree.kill_all(os.getpid())

    def pids(self) -> list[int]:
        return tree.descendants(os.getpid())

    def take_identity(self, confinement: Confinement) -> None:
        """In the worker: its uid where there are several, no capability, and the nested domain."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        uid = confinement.uid
        if confinement.privileged:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        sys_.prctl(sys_.PR_SET_DUMPABLE, 1)  # or its own /proc files would belong to somebody else
        sys_.drop_capabilities()
        landlock.confine(self._rules())
        os.chdir(self.work)

    def relocate(self, task: Task, *, privileged: bool) -> None:
        """In the worker: folders that are mounted elsewhere lie in the box's own folder here."""
        moved = {task["work"]: self.work, _TEMPORARY: self._temporary}
        if task["workspace"]:
            moved[task["workspace"]] = self._workspace
            task["env"] = _GIT | task["env"]
        task["work"] = self.work
        seen = self._spec["binds"]  # of the host, where it is: perhaps an interpreter below /tmp
        task["argv"] = [_moved(word, moved, seen) for word in task["argv"]]
        task["env"] = {name: _moved(value, moved, seen) for name, value in task["env"].items()}
        if not privileged:
            task["rlimits"]["RLIMIT_NPROC"] += self._others + _ROOM

    def _rules(self) -> list[tuple[str, int]]:
        read = [*self._spec["binds"], *(link for link, _ in self._spec["links"]), *_FILES]
        rules = [(path, landlock.READ) for path in read if os.path.exists(path)]
        rules += [(f"/dev/{name}", landlock.DEVICE) for name in _DEVICES]
        rules += [(path, landlock.WRITE) for path in (self.work, self._temporary, self._workspace)]
        return rules


def sweep(inits: set[int]) -> None:
    """In the zygote: kills what an init that was killed has left; it has become the zygote's own."""
    while strays := set(tree.children(os.getpid())) - inits:
        for pid in strays:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def _moved(text: str, folders: dict[str, str], seen: list[str]) -> str:
    if any(text.startswith(f"{path}/") for path in seen):
        return text
    for here, there in folders.items():
        if text == here or text.startswith(f"{here}/"):
            return there + text.removeprefix(here)
    return text


def _wait_for_all() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _nothing(*_: object) -> None:
    """A handler, so that the signal wakes a poll."""
