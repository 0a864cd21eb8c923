"""One sandbox for one program, seen from the server.

`async with Box(...)` starts a launcher and returns when the sandbox is ready; `run()` starts the program and returns
what it did. Invariants: when the block is left, every process of the run is dead and reaped, its control groups and
descriptors are gone, whatever happened, cancellation included; the program's clock starts at its exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from executor_service.cleanup import to_the_end
from executor_service.model import FileStatus, OutputFile
from executor_service.sandbox.groups import NO_GROUPS, RunGroups
from executor_service.sandbox.host import Host
from executor_service.sandbox.inside import wire
from executor_service.sandbox.limits import disk_inodes, resource_limits
from executor_service.sandbox.output import Capture
from executor_service.sandbox.process import Child, wait_readable
from executor_service.sandbox.report import Killed, Plan, Report, SandboxFailure, Stream

if TYPE_CHECKING:
    from executor_service.sandbox.inside.spec import Ended, Spec

__all__ = ["Box"]

_log = logging.getLogger(__name__)

_CHUNK = 64 << 10
"""Bytes read at once: what a pipe holds."""
_END_GRACE_S = 5.0
"""The init keeps the limits; when it is silent for so long after it should have spoken, the kernel ends the run."""
_SETUP_TIMEOUT_S = 30.0
"""Setting up takes milliseconds; where it takes this long, the machine is overloaded, and the run is our failure."""
_DEATH_NOTICE_S = 30.0
"""SIGKILL can be held up by a call that hangs in the kernel. A slot with a living process is never given away, so the
wait has no end; it is said once in so many seconds."""


class Box:
    """`name` must be unique among the sandboxes of this server at any time; `slot` chooses the uid."""

    def __init__(self, host: Host, plan: Plan, *, slot: int, name: str) -> None:
        self._host = host
        self._plan = plan
        self._slot = slot
        self._name = name
        self._frames: asyncio.Queue[tuple[dict[str, Any], bytes] | None] = asyncio.Queue()
        self._decoder = wire.Decoder()
        self._stdout = Capture(plan.limits.output_bytes)
        self._stderr = Capture(plan.limits.output_bytes)
        self._pipes: dict[int, tuple[Stream, Capture]] = {}
        self._observe: Callable[[Stream, bytes], None] | None = None
        self._control: socket.socket | None = None
        self._child: Child | None = None
        self._init = -1
        self._groups: RunGroups | None = None
        self._killed = Killed.NOT
        self._deadline: asyncio.Timeout | None = None
        self._closed = False
        self._executed = False
        self.started = False
        """Whether the program may have run."""

    async def __aenter__(self) -> Box:
        try:
            async with asyncio.timeout(_SETUP_TIMEOUT_S):
                await self._prepare()
        except TimeoutError:
            await to_the_end(self._close())
            raise SandboxFailure("set-up", 0, f"not ready after {_SETUP_TIMEOUT_S:g} s", started=False) from None
        except BaseException:
            await to_the_end(self._close())
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(self._close())

    async def run(self, observe: Callable[[Stream, bytes], None] | None = None) -> Report:
        """Starts the program and returns when everything that it started is dead. SandboxFailure when it can't say.

        `observe` is given what is kept of its output, as it is read.
        """
        self._observe = observe
        self._send({"type": "go"})
        self.started = True  # from here on nobody can say that it has not run, until the init says so
        try:
            async with asyncio.timeout(self._plan.limits.wall_time_s + _END_GRACE_S) as self._deadline:
                await self._expect("started")
                self._executed = True
                head, blob = await self._expect("ended")
        except TimeoutError:
            await to_the_end(self._close())
            if not self._executed:
                raise SandboxFailure("start", 0, "the program was not started in time", started=True) from None
            # What starves the init can be the program itself, so this is the program's time limit and not our failure.
            return self._report(None, b"")
        finally:
            self._deadline = None
        await to_the_end(self._close())
        return self._report(head, blob)  # type: ignore[arg-type]

    def kill(self, reason: Killed) -> None:
        """Ends a running program; the first reason stays."""
        if self._killed is Killed.NOT and self._deadline is not None:
            self._killed = reason
            self._send({"type": "kill"})
            self._deadline.reschedule(asyncio.get_running_loop().time() + _END_GRACE_S)

    async def _prepare(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self._plan.limits
        with _stage("control groups"):
            self._groups = self._host.groups.create(
                self._name, memory_bytes=limits.memory_bytes, processes=limits.processes
            )
        with _stage("launcher"), contextlib.ExitStack() as ends:
            self._control, theirs = socket.socketpair()
            ends.callback(theirs.close)
            self._control.setblocking(False)
            writers = []
            for stream, capture in ((Stream.STDOUT, self._stdout), (Stream.STDERR, self._stderr)):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                ends.callback(os.close, writer)
                os.set_blocking(reader, False)
                self._pipes[reader] = (stream, capture)
                writers.append(writer)
            mode = "root" if self._host.privileged else "user"
            command = [*self._host.launcher, str(theirs.fileno()), mode]
            self._child = Child(command, stdout=writers[0], stderr=writers[1], passed=[theirs.fileno()])
        loop.add_reader(self._control, self._read_control)
        for pipe in self._pipes:
            loop.add_reader(pipe, self._read_pipe, pipe)
        await self._expect("init")
        head, blobs = self._spec()
        with contextlib.suppress(ConnectionError):  # it failed before it read all; what it said is read below
            await loop.sock_sendall(self._control, wire.encode(head, sum(map(len, blobs))))  # type: ignore[arg-type]
            for blob in blobs:
                await loop.sock_sendall(self._control, blob)
        await self._expect("ready")

    def _spec(self) -> tuple[Spec, list[bytes]]:
        plan, limits = self._plan, self._plan.limits
        groups = self._groups.files() if self._groups else NO_GROUPS
        spec: Spec = {
            "type": "run",
            **self._host.root(self._slot),  # type: ignore[typeddict-item]
            "disk_bytes": limits.disk_bytes,
            "inodes": disk_inodes(plan.files),
            "seccomp_size": len(self._host.seccomp),
            "stdin_size": len(plan.stdin),
            "files": [{"path": file.path, "size": len(file.content), "mode": file.mode} for file in plan.files],
            "argv": list(plan.argv),
            "env": dict(plan.env),
            "rlimits": resource_limits(limits, counted=bool(groups["processes"])),
            "wall_time_s": limits.wall_time_s,
            "cpu_time_s": limits.cpu_time_s,
            "memory_bytes": limits.memory_bytes,
            "groups": groups,
            "return_paths": list(plan.return_paths),
            "return_bytes": limits.return_bytes,
        }
        return spec, [self._host.seccomp, plan.stdin, *(file.content for file in plan.files)]

    def _send(self, head: dict[str, Any]) -> None:
        assert self._control is not None
        with contextlib.suppress(OSError):  # the init is gone; what it said last, or its silence, is read by _expect()
            self._control.send(wire.encode(head))

    async def _expect(self, kind: str) -> tuple[dict[str, Any], bytes]:
        frame = await self._frames.get()
        if frame is None:
            said = self._stderr.output().text.strip().splitlines() if not self.started else []
            raise SandboxFailure("launcher", 0, said[-1] if said else "it ended without a word", started=self.started)
        head, blob = frame
        if head["type"] == "failed":
            self.started = self._executed
            raise SandboxFailure(head["stage"], head["errno"], head["error"], started=self._executed)
        assert head["type"] == kind, f"{head['type']} instead of {kind}"
        return head, blob

    def _read_control(self) -> None:
        assert self._control is not None
        try:
            data, handles, _, _ = socket.recv_fds(self._control, 1 << 20, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        if handles:
            self._init = handles[0]
        for frame in self._decoder.feed(data):
            self._frames.put_nowait(frame)
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._frames.put_nowait(None)

    def _read_pipe(self, pipe: int) -> bool:
        """Reads once. False when there is nothing more now, or ever."""
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(pipe)
            return False
        stream, capture = self._pipes[pipe]
        kept = capture.feed(data)
        if kept and self._observe is not None:
            self._observe(stream, kept)
        if capture.flooded:
            self.kill(Killed.OUTPUT)
        return True

    def _report(self, head: Ended | None, blob: bytes) -> Report:
        stdout, stderr = self._stdout.output(), self._stderr.output()
        if head is None:
            killed = self._killed or Killed.WALL
            return Report(killed, 0, signal.SIGKILL, stdout, stderr, wall_s=self._plan.limits.wall_time_s)
        files, offset = [], 0
        for answer in head["files"]:
            status = FileStatus(answer["status"].upper())
            size = answer["size"] if status is FileStatus.RETURNED else 0
            files.append(OutputFile(answer["path"], status, blob[offset : offset + size], answer["size"]))
            offset += size
        return Report(
            killed=self._killed if head["reason"] == "asked" else Killed(head["reason"]),
            code=head["code"],
            signal=head["signal"],
            stdout=stdout,
            stderr=stderr,
            files=tuple(files),
            wall_s=head["wall_s"],
            cpu_s=head["cpu_s"],
            peak_bytes=head["peak_bytes"],
            oom_kills=head["oom_kills"],
            denied_forks=head["denied_forks"],
        )

    async def _close(self) -> None:
        """Kills what lives, waits for its death, reads what is left in the pipes, frees everything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        if self._init >= 0:
            # The pidfd of a pid namespace's init is readable when every process of the namespace is dead.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            while not await wait_readable(self._init, _DEATH_NOTICE_S):
                _log.error("%s: processes are still not dead; their slot stays taken", self._name)
            os.close(self._init)
        if self._child is not None:
            if self._init < 0:
                self._child.kill()
            await self._child.wait()
            self._child.close()
        for pipe in self._pipes:
            while self._read_pipe(pipe):
                pass
            loop.remove_reader(pipe)
            os.close(pipe)
        if self._control is not None:
            loop.remove_reader(self._control)
            self._control.close()
        if self._groups is not None:
            self._groups.remove()


@contextlib.contextmanager
def _stage(name: str) -> Any:
    """An OSError inside is the failure of a stage."""
    try:
        yield
    except OSError as error:
        raise SandboxFailure(name, error.errno or 0, str(error), started=False) from None
