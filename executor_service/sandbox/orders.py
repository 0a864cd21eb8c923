"""Orders about one use of a box: to its init, which limits and signals it, and to its worker, which becomes it.

The init ignores an order about a use that is over, because the box may be ready for the next one already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from executor_service.model import Limits
from executor_service.sandbox.host import WORK_FOLDER
from executor_service.sandbox.limits import DEFAULT_INODES, disk_inodes, resource_limits
from executor_service.sandbox.report import NO_END_S, Mode, Plan
from executor_service.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from executor_service.guest.walls.signals import Whom


class Orders:
    """Sends the init its orders. All but `begin` and `end` are for processes that serve."""

    def __init__(self, box: Sandbox, plan: Plan) -> None:
        self._box = box
        self._use = box.use
        self._plan = plan

    def tell(self, order: dict[str, Any]) -> None:
        """Sends one order."""
        self._box.tell(order, self._use)

    def begin(self, *, mounts: bool) -> tuple[dict[str, Any], bool]:
        """Makes the first order: the limits of the use. True: the init must prepare something before the worker gets
        its task, and says `armed` then. `mounts`: whether the private folders of the box are mounts of its own."""
        plan, limits, box = self._plan, self._plan.limits, self._box
        restricts = box.restricts(limits.memory_bytes, limits.processes)
        inodes = disk_inodes(plan.files) + plan.entries
        resized = mounts and (limits.disk_bytes != box.disk_bytes or inodes != DEFAULT_INODES)
        order = {
            "type": "begin",
            "serves": plan.mode is Mode.SERVE,
            "wall_time_s": limits.wall_time_s,
            "cpu_time_s": limits.cpu_time_s,
            "memory_bytes": limits.memory_bytes,
            "processes": limits.processes if restricts else 0,
            "tasks": 0 if box.counts_processes else limits.processes,
            "disk_bytes": limits.disk_bytes if resized else 0,
            "inodes": inodes,
            "workspace": asdict(plan.workspace) if plan.workspace else None,
        }
        return order, restricts or resized or plan.workspace is not None

    def end(self) -> None:
        """Ends everything in the box."""
        self.tell({"type": "end"})

    def allow(self, limits: Limits, pid: int = 0) -> None:
        """Allows this much CPU time and memory until `rest()`; the caller keeps the wall time. Process `pid`, by its
        number inside, does the work; 0: the worker."""
        order = {"type": "cell", "pid": pid, "wall_time_s": NO_END_S, "cpu_time_s": limits.cpu_time_s}
        self.tell({**order, "memory_bytes": self._plan.limits.memory_bytes})

    def rest(self) -> None:
        """Says that nothing is asked of the guest now; only its memory is watched."""
        self.tell({"type": "rest"})

    def ask_starved(self, pid: int) -> None:
        """Asks for an event `{"type": "starved", "pid", "seconds"}`: seconds that `pid`, or a process below it, has
        waited for a processor since the last `allow()` for it. It comes after a look at the limits, and not at all if
        one was met."""
        self.tell({"type": "starved", "pid": pid})

    def signal(self, number: int, pid: int = 0, whom: Whom = "process") -> None:
        """Sends a signal to the worker, or to another process of the box, by its number inside.

        `whom`: that process; its process group; or its tree: its descendants, and the members of its session.
        """
        self.tell({"type": "signal", "pid": pid, "signal": number, "whom": whom})

    def ask_writable(self) -> None:
        """Asks for an event `{"type": "writable"}` with a descriptor of the writable layer of the image that the box is
        for. Only for one with an image."""
        self.tell({"type": "writable"})

    def start_beside(self, ends: Sequence[int]) -> None:
        """Starts another worker in the box, with these ends (data, stdout, stderr), which the caller closes. The first
        frame to it is a task. Only for a box whose `mounts` is true."""
        self._box.tell({"type": "beside"}, self._use, ends)

    def layer(self, number: int, parent: int) -> None:
        """Mounts the workspace once more, with a copy of the writable layer `parent` (0: the worker's own).

        An event `{"type": "layered", "number", "errno"}` answers. Only for a box whose `mounts` is true.
        """
        self.tell({"type": "layer", "number": number, "parent": parent})


def task_of(plan: Plan) -> dict[str, Any]:
    """The worker's task: what it writes, limits and becomes. The bytes of stdin and of the files follow it."""
    return {
        "type": "task",
        "mode": plan.mode.value,
        "collects": bool(plan.return_paths),
        "entry": plan.entry,
        "work": WORK_FOLDER,
        "folder": plan.folder,
        "user": plan.user,
        "workspace": plan.workspace.target if plan.workspace else "",
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "rlimits": resource_limits(plan.limits, reserves=plan.reserves),
        "stdin_size": len(plan.stdin),
        "talks": plan.talks,
        "files": [{"path": file.path, "size": len(file.content), "mode": file.mode} for file in plan.files],
    }
