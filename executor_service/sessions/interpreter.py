"""An interpreter of a session, as the server holds it, and how it ends.

Invariant: it ends once, and `gone` says why. What it says is a claim of untrusted code, and every wait for it has a
deadline.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from dataclasses import dataclass, field
from typing import Any

from executor_service.model import Cause
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.report import Killed
from executor_service.sandbox.streams import Streams
from executor_service.sessions.reasons import Ended

_PARENT = re.compile(rb"^PPid:\t(\d+)$", re.MULTILINE)
_INNERMOST = re.compile(rb"^NSpid:.*\t(\d+)$", re.MULTILINE)
_STATUS_BYTES = 1 << 16
"""More than /proc/PID/status has: a process of a sandbox is in no group but its own."""


@dataclass(frozen=True, slots=True)
class Death:
    """End of an interpreter."""

    why: Ended
    killed: Killed = Killed.NOT
    """The limit that it was killed for."""
    code: int = 0
    signal: int = 0
    ours: bool = False
    """It was not the code's doing: neither a limit nor an exit."""
    failed: bool = False
    """The sandbox failed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Counts of the init, if it ended everything."""


MAX_REASON = 500
"""Characters of what is remembered of a session that has ended."""
FLOODED = Death(
    Ended("was killed: it wrote far more than its output limit allows", Cause.POLICY),
    Killed.OUTPUT,
    signal=signal.SIGKILL,
)
LAPSED = Death(
    Ended("was killed: the limiter no longer vouches for the lease that its cell ran under"),
    Killed.LAPSED,
    signal=signal.SIGKILL,
    ours=True,
)
"""Killed and not interrupted: another may hold the token from this moment on."""


@dataclass(eq=False, slots=True)
class Interpreter:
    """The worker of a box, or a branch of it."""

    session_id: str
    channel: Channel
    streams: Streams
    is_root: bool
    gone: asyncio.Future[Death]
    process: int = 0
    """Its number here."""
    pid: int = 0
    """Its number inside, as the kernel says; 0: the worker."""
    layer: int = 0
    """Number of the writable layer of its workspace."""
    doom: Death | None = None
    """Why it is being killed."""

    async def heard(self, within_s: float) -> bool:
        """Waits that long, and says whether its channel has something to say, or it has ended."""
        if not self.channel.ready and not self.gone.done():
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def wake(_: object = None) -> None:
                if not waiter.done():
                    waiter.set_result(None)

            timer = loop.call_later(within_s, wake)
            self.gone.add_done_callback(wake)
            self.channel.listen(wake)
            try:
                await waiter
            finally:
                self.channel.ignore()
                self.gone.remove_done_callback(wake)
                timer.cancel()
        return self.channel.ready or self.gone.done()

    async def expect(self, within_s: float) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None: it has ended, or is silent for so long."""
        await self.heard(within_s)
        return self.channel.take()


def new_ends(owner: int | None) -> tuple[list[int], list[int]]:
    """Descriptors of socket, stdout and stderr: ours, and those for the process. The caller closes them.

    `owner`: uid that shall be able to open the pipes by their names.
    """
    data, data_end = socket.socketpair()
    ours, theirs = [data.detach()], [data_end.detach()]
    for _ in range(2):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        if owner is not None:
            os.fchown(writer, owner, owner)
        ours.append(reader)
        theirs.append(writer)
    return ours, theirs


def place_of(process: int) -> tuple[int, int]:
    """The parent of a process, and its own number in the innermost namespace that it is in; zeros: it is gone."""
    try:
        status = os.open(f"/proc/{process}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 0
    try:
        text = os.read(status, _STATUS_BYTES)
    except OSError:
        return 0, 0
    finally:
        os.close(status)
    # A name can't fake a line: the kernel writes its line ends as \\n.
    parent, inner = _PARENT.search(text), _INNERMOST.search(text)
    return (int(parent[1]), int(inner[1]) if inner else process) if parent else (0, 0)
