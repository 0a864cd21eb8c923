"""The init of a run: starts the program, keeps its limits, reaps, and ends everything when the program has ended.

Invariants: the program is never pid 1; nothing of the run is alive when its end is reported; when the server is gone,
the init ends, and the kernel ends the whole pid namespace with it.
"""

from __future__ import annotations

import os
import select
import signal
import time

from executor_service.sandbox.inside import program, wire
from executor_service.sandbox.inside import syscalls as sys_
from executor_service.sandbox.inside.files import read_files
from executor_service.sandbox.inside.watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from executor_service.sandbox.inside.meters import Meters
    from executor_service.sandbox.inside.spec import Ended, Spec


class StartError(Exception):
    """The program could not be started: the stage, the errno (0: none) and its text."""

    def __init__(self, stage: str, number: int, text: str) -> None:
        super().__init__(stage, number, text)
        self.stage = stage
        self.number = number
        self.text = text


class Supervisor:
    def __init__(
        self, control: socket.socket, spec: Spec, *, privileged: bool, meters: Meters, stdin: int, seccomp: bytes
    ) -> None:
        self._control = control
        self._spec = spec
        self._privileged = privileged
        self._meters = meters
        self._stdin = stdin
        self._seccomp = seccomp
        self._pid = 0
        self._status: int | None = None
        self._ended_at = 0.0
        self._wakeup, self._wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self, work: int) -> tuple[Ended, bytes]:
        """Runs the program to its end and returns what became of it, and the files asked for."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_end, warn_on_full_buffer=False)
        self._start()
        watch = Watch(
            time.monotonic(),
            wall_s=self._spec["wall_time_s"],
            cpu_s=self._spec["cpu_time_s"],
            memory_bytes=self._spec["memory_bytes"],
            sample_memory=not self._meters.guards_memory,
            processors=len(os.sched_getaffinity(0)),
        )
        wire.send(self._control, {"type": "started"})
        reason = self._supervise(watch)
        self._kill_all()
        last = self._meters.read()
        files, contents = read_files(work, self._spec["return_paths"], self._spec["return_bytes"])
        status = self._status if self._status is not None else signal.SIGKILL
        ended: Ended = {
            "type": "ended",
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "reason": reason,  # type: ignore[typeddict-item]
            "wall_s": self._ended_at - watch.started,
            "cpu_s": max(watch.cpu_s, last.cpu_s),
            "peak_bytes": self._meters.peak_bytes(watch.peak_bytes),
            "oom_kills": last.oom_kills,
            "denied_forks": last.denied_forks,
            "files": files,
        }
        return ended, contents

    def _start(self) -> None:
        # Before the fork: the program must never find an init that can be traced or read.
        sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
        report, report_end = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            program.become(
                self._spec,
                privileged=self._privileged,
                stdin=self._stdin,
                attach=self._meters.attach,
                seccomp=self._seccomp,
                report=report_end,
            )
        os.close(report_end)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in (1, 2):
            os.dup2(null, number)
        os.close(self._stdin)
        sys_.drop_bounding_set()
        sys_.keep_capabilities(sys_.CAP_KILL, sys_.CAP_DAC_READ_SEARCH)
        problem = b""
        while chunk := os.read(report, 4096):
            problem += chunk
        os.close(report)
        if problem:
            stage, number_text, text = problem.decode(errors="replace").split("\0", 2)
            raise StartError(stage, int(number_text), text)

    def _supervise(self, watch: Watch) -> str:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        self._meters.register(poll)
        while True:
            ready = poll.poll(watch.wait_s(time.monotonic()) * 1000 + 1)
            now = time.monotonic()
            if any(handle == self._control.fileno() for handle, _ in ready):
                if not self._control.recv(64):
                    os._exit(1)  # the server is gone; the kernel kills the namespace
                return "asked"
            if any(handle == self._wakeup for handle, _ in ready):
                os.read(self._wakeup, 4096)
            if self._reap(os.WNOHANG):
                return ""
            reason = watch.observe(now, self._meters.read())
            if reason:
                return reason

    def _reap(self, flags: int) -> bool:
        """Takes in the dead. True when the program is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, flags)
            except ChildProcessError:
                return self._status is not None
            if pid == 0:
                return self._status is not None
            if pid == self._pid:
                self._status = status
                self._ended_at = time.monotonic()

    def _kill_all(self) -> None:
        """SIGKILL to every process of the namespace but this one, and waits until the last is gone."""
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._reap(0)
