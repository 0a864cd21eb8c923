"""One use of a box: a program, or something that serves, from the request to the death of its last process.

Invariants: when the block is left, every process of the use is dead, whatever happened, cancellation included; the
program's clock starts when its worker says that it starts; nothing is given to the worker before the init knows how
much it may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from typing import Any

from executor_service.cleanup import to_the_end
from executor_service.guest.protocol import wire
from executor_service.guest.watch import PATIENCE
from executor_service.guest.worker import GO
from executor_service.model import FileStatus, OutputFile
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.host import Host
from executor_service.sandbox.orders import Orders, task_of
from executor_service.sandbox.report import Killed, Observe, Plan, Report, SandboxFailure, Take, counts_of
from executor_service.sandbox.sandbox import Sandbox
from executor_service.sandbox.streams import Streams

_END_GRACE_S = 5.0
"""The init keeps the limits; when it is silent for so long after it should have spoken, the kernel ends the box."""
_AT_ONCE = 32 << 10
"""Bytes that an empty socket always takes."""
_QUIET_S = 0.01
"""From then on its output is read, and its init keeps its limits; a program that is done sooner needs neither. Looking
at it costs a run a tenth of its CPU time, so this is above what the shortest take on a machine that has much to do."""
_QUIET_SHARE = 0.25
"""Share of a wall time so short that the above would make it inexact."""
_SETUP_TIMEOUT_S = 30.0
"""Handing over takes milliseconds, for large files more; beyond this the machine is overloaded."""


class WorkerSocket:
    """The server's end of the socket to a worker: its task, then what it talks with the server."""

    def __init__(self, handle: int, plan: Plan) -> None:
        self._socket = socket.socket(fileno=handle)
        self._socket.setblocking(False)
        if plan.talks:
            self._socket.shutdown(socket.SHUT_RD)  # what the program writes to its input is nobody's
        blobs = [plan.stdin, *(file.content for file in plan.files)]
        self._unsent = wire.encode(task_of(plan), size := sum(map(len, blobs)))
        self._blobs = blobs if len(self._unsent) + size > _AT_ONCE else []  # what is large is not copied
        if not self._blobs:
            self._unsent = b"".join((self._unsent, *blobs))

    @property
    def is_large(self) -> bool:
        """True if the task is too large to be sent with `GO`."""
        return bool(self._blobs)

    def send_ahead(self) -> None:
        """Sends what the socket takes at once."""
        if self._unsent:
            with contextlib.suppress(OSError):  # nothing is sent, `send()` will say why
                self._unsent = self._unsent[self._socket.send(self._unsent) :]

    async def send(self, more: bytes = b"") -> None:
        """Sends the rest of the task, and `more`."""
        pieces = [self._unsent, *self._blobs, more] if self._blobs else [self._unsent + more]
        self._unsent, self._blobs = b"", []
        with contextlib.suppress(ConnectionError):  # it failed before it read all; its init says why
            for piece in pieces:
                await asyncio.get_running_loop().sock_sendall(self._socket, piece)

    async def feed(self, data: bytes) -> None:
        """Sends standard input to a program that `talks`; empty: there is no more. Waits until the kernel has room for
        it. Nothing happens once the program has ended."""
        with contextlib.suppress(OSError):
            if data:
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
            else:
                self._socket.shutdown(socket.SHUT_WR)

    def channel(self, most: int, most_head: int, *, asks_sender: bool) -> Channel:
        """Opens the channel to what serves in the worker."""
        return Channel(self._socket.dup(), most, most_head, asks_sender=asks_sender)

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


class SandboxRun:
    """Made by `SandboxPool.take()`."""

    def __init__(self, host: Host, box: Sandbox, plan: Plan) -> None:
        self.host = host
        self.box = box
        """Box that it runs in."""
        self._plan = plan
        self.orders = Orders(box, plan)
        """Orders to the init, for a process that serves."""
        self._socket: WorkerSocket | None = None
        self._streams: Streams | None = None
        self._channel: Channel | None = None
        self._killed = Killed.NOT
        self._leases = 0
        self._deadline: asyncio.Timeout | None = None
        self._ended = self._dead = False
        self._unarmed = False
        self._later: asyncio.TimerHandle | None = None
        self._starved: asyncio.Future[float] | None = None
        self.started = False
        """True if the program may have run."""
        self.files: tuple[OutputFile, ...] | None = None
        """SERVE: what the plan wants returned, once `event()` has said `ended`."""

    async def __aenter__(self) -> SandboxRun:
        try:
            if not self._hand_over():
                async with asyncio.timeout(_SETUP_TIMEOUT_S):
                    if self._unarmed:
                        await self._expect("armed")
                    assert self._socket is not None
                    await self._socket.send()
        except TimeoutError:
            await to_the_end(self._close())
            raise SandboxFailure("set-up", 0, f"not ready after {_SETUP_TIMEOUT_S:g} s", started=False) from None
        except BaseException:
            await to_the_end(self._close())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._close()
        except asyncio.CancelledError:
            await to_the_end(self._close())
            raise
        finally:
            while self._leases:
                self.drop_lease()

    def hold_lease(self) -> None:
        """Puts what is to run in it under a lease, until `drop_lease()` or the end of the block: once the lease has
        lapsed, the init kills everything in the box, whatever the server does."""
        self._leases += 1
        self.box.leases.hold(self.box.number)

    def drop_lease(self) -> None:
        """Something that ran under a lease is over."""
        self._leases -= 1
        self.box.leases.drop(self.box.number)

    async def run(self, observe: Observe | None = None, take: Take | None = None) -> Report:
        """Starts the program and returns when it has ended and everything that it started is killed.

        `observe` is given what is kept of its output, as it is read; `take`, where files are to be returned, stands for
        reading them. SandboxFailure when nobody can say what it did.
        """
        self.streams.observe, wall_s = observe, self._plan.limits.wall_time_s
        await self._go()
        try:
            async with asyncio.timeout(wall_s * PATIENCE + _END_GRACE_S) as self._deadline:
                head, handles = await self._expect("ended")
                self._ended = True
                self._rest()
        except TimeoutError:
            # What starves the init can be the program itself, so this is the program's time limit and not our failure.
            self.box.kill()
            await to_the_end(self._close())
            return Report(self._killed or Killed.WALL, 0, signal.SIGKILL, *self.streams.outputs(), wall_s=wall_s)
        finally:
            self._deadline = None
        files = await returned_files(self._plan, handles[0]) if handles and take is None else ()
        self.streams.drain()
        stdout, stderr = self.streams.outputs()
        report = Report(
            killed=self._killed if head["reason"] == "asked" else Killed(head["reason"]),
            code=head["code"],
            signal=head["signal"],
            stdout=stdout,
            stderr=stderr,
            files=files,
            outside_kills=self.host.killed_outside(head, head["signal"], head["wall_s"]),
            **counts_of(head),
        )
        if handles and take is not None:
            with socket.socket(fileno=handles[0]) as reader:
                await take(report, reader.fileno())
        return report

    async def feed(self, data: bytes) -> None:
        """As `WorkerSocket.feed`, for a running program."""
        if self._socket is not None:
            await self._socket.feed(data)

    async def starved_s(self, within_s: float) -> float:
        """Seconds that a running program has waited for a processor so far; 0 if that is not known in time."""
        self._starved = asyncio.get_running_loop().create_future()
        self.orders.ask_starved(0)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._starved, within_s)
        return 0.0

    def kill(self, reason: Killed) -> None:
        """Ends a running program; the first reason stays."""
        if self._killed is Killed.NOT and self._deadline is not None:
            self._killed = reason
            self.orders.end()
            self._deadline.reschedule(asyncio.get_running_loop().time() + _END_GRACE_S)

    @property
    def streams(self) -> Streams:
        """Streams that it writes to."""
        assert self._streams is not None
        return self._streams

    async def serve(self, most: int, most_head: int = wire.MAX_HEAD, *, asks_sender: bool = False) -> Channel:
        """SERVE: lets the worker begin, and returns the channel to what serves in it. Closed with the block.

        A frame from inside of more than `most` bytes, or a head of more than `most_head`, ends the channel.
        """
        assert self._socket is not None
        self._channel = self._socket.channel(most, most_head, asks_sender=asks_sender)
        await self._go()
        return self._channel

    async def event(self) -> dict[str, Any] | None:
        """SERVE: what happens next; to be called until it says `ended`, or None (the box is gone).
        `{"type": "exited", "pid", "main", "code", "signal"}`: a process of the box that its init waited for has ended;
        `main` is the worker itself. `{"type": "ended", "reason", ...}`: all are killed, for a limit or as asked.
        `{"type": "writable", "handle"}`: the descriptor that was asked for, for the caller to close."""
        if (message := await self.box.hear()) is None:
            return None
        head, handles = message
        self._ended |= (kind := head["type"]) == "ended"
        self._dead |= kind == "dead"
        if kind == "writable":
            head["handle"] = handles[0]
        elif handles:
            self.files = await returned_files(self._plan, handles[0])
        return head

    @property
    def mounts(self) -> bool:
        """True if workspaces are mounted in it, not copied."""
        return not self.host.bare

    @property
    def owner(self) -> int | None:
        """Uid of the programs in it; None: that of the server."""
        return self.host.uid(self.box.number) if self.host.privileged else None

    def _hand_over(self) -> bool:
        """Tells the init the limits and the worker what to run; the worker then waits for `go`.

        False: the init has to make ready first, or the task is too large to be sent with `go`.
        """
        plan, limits, box = self._plan, self._plan.limits, self.box
        if not box.streams:
            raise SandboxFailure("box", 0, "it ended before it was used", started=False)
        (data, out, err), box.streams = box.streams, []
        self._socket = WorkerSocket(data, plan)
        quiet_s = 0.0 if plan.talks else min(_QUIET_S, limits.wall_time_s * _QUIET_SHARE)
        self._streams = Streams(out, err, limits.output_bytes, lambda: self.kill(Killed.OUTPUT))
        begin, self._unarmed = self.orders.begin(mounts=self.mounts)
        if at_once := self._unarmed or begin["serves"] or self.host.bare or plan.talks:
            self.orders.tell(begin)
        # Else the init need not be woken for a program that ends before it could have met a limit.
        self._later = asyncio.get_running_loop().call_later(quiet_s, self._attend, None if at_once else begin)
        return not (self._unarmed or self._socket.is_large)

    def _attend(self, begin: dict[str, Any] | None) -> None:
        self.streams.listen()
        if begin is not None:
            self.orders.tell(begin)

    def send_ahead(self) -> None:
        """The worker prepares while its lease is bound. Else the task goes out with `go`, in one piece."""
        if self._socket is not None:
            self._socket.send_ahead()

    async def _go(self) -> None:
        self.started = True  # from here on nobody can say that it has not run, until its init says so
        assert self._socket is not None
        await self._socket.send(GO)

    async def _expect(self, kind: str) -> tuple[dict[str, Any], list[int]]:
        while (message := await self.box.hear()) is not None and message[0]["type"] == "starved":
            if self._starved is not None and not self._starved.done():
                self._starved.set_result(message[0]["seconds"])
        if message is None:
            failure = self.box.failure or SandboxFailure("box", 0, "it ended without a word", started=self.started)
            raise SandboxFailure(failure.stage, failure.number, str(failure), started=self.started)
        head, handles = message
        if head["type"] == "failed":
            self.started = head["started"]
            raise SandboxFailure(head["stage"], head["errno"], head["error"], started=self.started)
        if head["type"] == "dead":
            self._dead = True
            raise SandboxFailure("worker", 0, "it ended before it was asked to", started=self.started)
        assert head["type"] == kind, f"{head['type']} instead of {kind}"
        return head, handles

    async def _close(self) -> None:
        """Ends the use, waits until everything of it is dead, frees what it had. Idempotent; goes on when repeated."""
        if self._streams is None:
            return  # never begun
        if self._socket is not None:
            self._rest()
            self._socket.close()
            self._socket = None
            if self._channel is not None:
                self._channel.close()
            if not self._dead and not self._ended:
                self.orders.end()
        if not self._dead:
            await self._death()
            self._dead = True
        self._streams.drain()
        self._streams.close()

    def _rest(self) -> None:
        """Nothing more is read before `drain()`: whoever wrote is about to be killed."""
        if self._later is not None:
            self._later.cancel()
        self.streams.rest()

    async def _death(self) -> None:
        try:
            async with asyncio.timeout(_END_GRACE_S):
                while (message := await self.box.hear()) is not None:
                    for handle in message[1]:
                        os.close(handle)
                    if message[0]["type"] == "dead":
                        return
        except TimeoutError:
            pass
        await self.box.close()


async def returned_files(plan: Plan, handle: int) -> tuple[OutputFile, ...]:
    """Asks the child of the init that reads the returned files, over `handle`. Everything else in the box is dead."""
    order = {"type": "collect", "paths": list(plan.return_paths), "budget": plan.limits.return_bytes}
    reader = Channel(socket.socket(fileno=handle), plan.limits.return_bytes + wire.MAX_TABLE)
    try:
        async with asyncio.timeout(_SETUP_TIMEOUT_S):
            await reader.send(order)
            table = json.loads(await reader.blob())
            files = []
            for path, (answer, size) in zip(plan.return_paths, table, strict=True):
                status = FileStatus(answer.upper())
                content = await reader.blob() if status is FileStatus.RETURNED and size else b""
                files.append(OutputFile(path, status, content, size))
            return tuple(files)
    except ConnectionError:
        raise SandboxFailure("files", 0, "their reader ended without a word", started=True) from None
    finally:
        reader.close()
