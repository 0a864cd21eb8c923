"""Children of a box's init in one use: the worker, branches of it, and those that prepare workspaces for branches.

Invariant: each death is taken in once, and the server hears of each if the use serves.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from executor_service.guest.meters import Meters
    from executor_service.guest.protocol.status_page import StatusPages
    from executor_service.guest.walls.without_namespaces import BareInit
    from executor_service.guest.walls.workspace import WorkspaceMounts


class Children:
    """Reaps them. `pid` is the worker; `tell` sends a message to the server."""

    def __init__(self, pid: int, meters: Meters, pages: StatusPages, tell: Callable[[dict[str, Any]], None]) -> None:
        self.pid = pid
        self.over = False
        """The worker has said, or shown by its death, that it has ended."""
        self.ended_at = 0.0
        """Monotonic seconds."""
        self.exit: int | None = None
        """Wait status of the worker."""
        self.largest = 0
        """Peak resident bytes of the largest process that has ended."""
        self.answered = False
        """The server knows what the use has used."""
        self._meters = meters
        self._pages = pages
        self._tell = tell
        self._layers: dict[int, int] = {}
        """Processes that make the workspaces of branches, and the numbers of these."""

    def layer(self, workspaces: WorkspaceMounts | BareInit, number: int, parent: int) -> None:
        """Starts making a workspace for a coming branch; `reap` tells the server what became of it."""
        try:
            self._layers[workspaces.branch(number, parent)] = number
        except OSError as error:
            self._tell({"type": "layered", "number": number, "errno": error.errno or 0})

    def heard_stop(self) -> bool:
        """Says whether the worker has stopped for good: the usual case, and cheaper to ask for than `reap`."""
        if self.over or self._pages.ended() is None:
            return False
        try:
            self.over = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:
            return False  # it said so, and exits instead
        self.ended_at = time.monotonic()
        return self.over

    def reap(self, flags: int, *, serves: bool = False) -> None:
        """Takes in the dead, and a worker that stopped itself for good. `flags`: as for waitpid(2); 0 waits for all,
        and tells nobody."""
        while True:
            try:
                pid, status, resident = self._wait(flags)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid == self.pid and self._pages.ended() is not None:
                    self.end(None)
                continue
            if pid in self._layers:
                code = os.waitstatus_to_exitcode(status)
                self._tell({"type": "layered", "number": self._layers.pop(pid), "errno": abs(code)})
                continue
            self.largest = max(self.largest, resident)
            if pid == self.pid:
                self.end(status)
            failed = pid == self.pid and self._pages.failure() is not None  # which is told with its reason
            if serves and flags and not failed:
                self._tell({"type": "exited", "pid": pid, "main": pid == self.pid, **exit_of(status)})

    def ways(self) -> dict[str, int]:
        """Exit code and signal of the worker; one that lives is about to be killed."""
        return {"code": 0, "signal": int(signal.SIGKILL)} if self.exit is None else exit_of(self.exit)

    def _wait(self, flags: int) -> tuple[int, int, int]:
        """Process, status, peak resident bytes; the last only where it is needed, because asking takes longer."""
        if self._meters.knows_peak or self.answered:
            return *os.waitpid(-1, flags), 0
        pid, status, used = os.wait4(-1, flags)
        return pid, status, used.ru_maxrss << 10

    def end(self, status: int | None) -> None:
        """The worker has ended, or is about to be killed. `status`: its wait status, once it is dead."""
        if not self.over:
            self.over = True
            self.ended_at = time.monotonic()
        if status is not None:
            self.exit = status


def exit_of(status: int) -> dict[str, int]:
    """Exit code and signal of a process that has ended."""
    if os.WIFSIGNALED(status):
        return {"code": 0, "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": 0}
