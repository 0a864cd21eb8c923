"""A box, seen from the server: namespaces, control groups and an init that outlive the programs run in them.

Invariants: a box has one user at a time; it is ready when everything of the last use is dead and gone and a fresh,
confined worker waits; when it is closed, every process in it is dead and its groups and descriptors are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from executor_service.sandbox.groups import RunGroups
from executor_service.sandbox.host import Host
from executor_service.sandbox.lease_page import LeasePage
from executor_service.sandbox.limits import DEFAULT_INODES
from executor_service.sandbox.report import ImageMount, SandboxFailure
from executor_service.sandbox.zygote import Zygote, wait_readable

if TYPE_CHECKING:
    from executor_service.guest.protocol.spec import Groups

_log = logging.getLogger(__name__)
_decode = json.JSONDecoder().decode
"""`json.loads` without its search for an encoding."""
_MAX_MESSAGE = 64 << 10
_ROOM_FOR_HANDLES = socket.CMSG_SPACE(4 * array("i").itemsize)
_CLOSE_ON_EXEC, _CUT = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)
"""As numbers: each message would pay for their arithmetic as members of an enum."""
_DEATH_NOTICE_S = 30.0
"""SIGKILL can be held up by a call that hangs in the kernel. A uid with a living process is never given away, so the
wait has no end; it is said once in so many seconds."""

_SWEEPS, _SWEEP_S = 50, 0.1

Message = tuple[dict[str, Any], list[int]]
"""Message of an init, and the descriptors that came with it."""


class Sandbox:
    """`number` is unique among the living boxes of this server; it chooses uid and groups."""

    def __init__(
        self,
        host: Host,
        zygote: Zygote,
        number: int,
        leases: LeasePage,
        image: ImageMount | None,
        *,
        disk_bytes: int,
        memory_bytes: int,
        processes: int,
        on_ready: Callable[[Sandbox], None],
        on_gone: Callable[[Sandbox], None],
    ) -> None:
        self.number = number
        self.leases = leases
        self.profile = zygote.profile.name
        self._image = image
        self.disk_bytes = disk_bytes
        self.groups: RunGroups | None = None
        self.counts_processes = False
        self.streams: list[int] = []
        """Socket, stdout and stderr of the worker that waits. Whoever takes the box closes them."""
        self.failure: SandboxFailure | None = None
        """Why it is gone, where its init said so."""
        self._host = host
        self._zygote = zygote
        self._limits = (memory_bytes, processes)
        self._on_ready, self._on_gone = on_ready, on_gone
        self._messages: deque[Message] = deque()
        self._listener: asyncio.Future[None] | None = None
        self._init = -1
        self.use = 0
        """Number of the present use, or the coming one: the init may be done with a use before its user knows."""
        self._control: socket.socket | None = None
        self._gone = False
        self.doomed = False
        """It is to end, or has: nobody may get it. Its init can be busy with the end of a use, and say that it is ready
        for the next, before it learns of this."""
        self._closing = asyncio.Lock()

    async def open(self) -> None:
        """Asks the zygote for it. SandboxFailure when that is not possible; `on_ready` or `on_gone` follows."""
        memory_bytes, processes = self._limits
        name = f"box-{self.number}"
        async with self._closing:
            try:
                self.groups = await asyncio.to_thread(
                    self._host.groups.create, name, memory_bytes=memory_bytes, processes=processes
                )
                groups = await asyncio.to_thread(self.groups.files)
            except OSError as error:
                raise SandboxFailure("control groups", error.errno or 0, str(error), started=False) from None
            if not self.doomed:
                await self._ask(groups)

    async def _ask(self, groups: Groups) -> None:
        self.counts_processes = bool(groups["processes"])
        image = self._image
        spec = {
            **self._host.root(self.number),
            "number": self.number,
            "disk_bytes": self.disk_bytes,
            "inodes": DEFAULT_INODES,
            "groups": groups,
            "image": None if image is None else {"layers": image.layers, "folder": image.folder, "owner": image.owner},
        }
        self._control = await self._zygote.open_box(spec, self.leases.handle)
        asyncio.get_running_loop().add_reader(self._control, self._read)

    def restricts(self, memory_bytes: int, processes: int) -> bool:
        """Says whether its init is to set these limits of its control groups for the coming use, and records them."""
        changed = self._limits != (memory_bytes, processes) and self._host.groups.works
        self._limits = (memory_bytes, processes)
        return changed

    def tell(self, order: dict[str, Any], use: int, handles: Sequence[int] = ()) -> None:
        """An order to the init about a use, without effect when that has ended. Where it is gone, `hear()` says so.
        `handles`: none or three descriptors to be given to it."""
        if self._control is not None:
            message = json.dumps({**order, "use": use}).encode()
            with contextlib.suppress(OSError):
                if handles:
                    socket.send_fds(self._control, [message], handles)
                else:
                    self._control.send(message)

    async def hear(self) -> Message | None:
        """Returns the init's next message about this use; None: the init is gone. One task listens at a time."""
        while not self._messages:
            if self._gone:
                return None
            self._listener = asyncio.get_running_loop().create_future()
            try:
                await self._listener
            finally:
                self._listener = None
        return self._messages.popleft()

    def _wake(self) -> None:
        if self._listener is not None and not self._listener.done():
            self._listener.set_result(None)

    def kill(self) -> None:
        """Ends the box and everything in it. `on_gone` follows."""
        self.doomed = True
        if self._init >= 0:
            with contextlib.suppress(ProcessLookupError):
                # Without a pid namespace the init has to end its box; in one, the kernel does.
                signal.pidfd_send_signal(self._init, signal.SIGTERM if self._host.bare else signal.SIGKILL)
        else:
            self._lost()

    async def close(self) -> None:
        """Returns when every process in it is dead and nothing of it is left. Idempotent, and may be called twice."""
        async with self._closing:
            await self._close()

    async def _close(self) -> None:
        self.kill()
        if self._init >= 0:
            while not await wait_readable(self._init, _DEATH_NOTICE_S):
                _log.error("box %d: processes are still not dead; it stays taken", self.number)
            os.close(self._init)
            self._init = -1
        self._lost()
        for handle in self.streams:
            os.close(handle)
        self.streams = []
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.groups is not None:
            # Where an init was killed from outside and there is no pid namespace, its zygote is still at work.
            for _ in range(_SWEEPS):
                if await asyncio.to_thread(self.groups.remove):
                    break
                await asyncio.sleep(_SWEEP_S)
            self.groups = None

    def _read(self) -> None:
        assert self._control is not None
        try:
            data, extra, flags, _ = self._control.recvmsg(_MAX_MESSAGE, _ROOM_FOR_HANDLES, _CLOSE_ON_EXEC)
        except BlockingIOError:
            return
        except OSError:
            data, extra, flags = b"", [], 0
        handles = list(array("i", extra[0][2])) if extra else []
        if flags & _CUT:  # the kernel drops descriptors that this process has no room for
            for handle in handles:
                os.close(handle)
            full = "this server has no open files left (`ulimit -n`)"
            self.failure = SandboxFailure("descriptors", errno.EMFILE, full, started=False)
            self.kill()
            return
        if not data:
            self._lost()
            return
        said: dict[str, Any] = _decode(str(data, "utf-8"))
        match said["type"]:
            case "init":
                self._init = handles[0]
            case "ready":
                self.use += 1
                self.streams = handles
                if not self.doomed:
                    self._on_ready(self)
            case _:
                if said["type"] == "failed":
                    self.failure = SandboxFailure(said["stage"], said["errno"], said["error"], started=said["started"])
                self._messages.append((said, handles))
                self._wake()

    def _lost(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
        self._wake()
        self._on_gone(self)
