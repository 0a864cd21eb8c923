"""An interpreter of a session, as the server holds it, and how it ends.

Invariant: it ends once, and `gone` says why. What it says is a claim of untrusted code, and every wait for it has a
deadline.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Any

from executor_service.core.sessions import Ended
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.report import Killed
from executor_service.sandbox.streams import Streams


@dataclass(frozen=True, slots=True)
class Death:
    """How an interpreter has ended."""

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
    """What the init counted, where it ended everything."""


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
    pid: int = 0
    """Its number inside, as it says."""
    layer: int = 0
    """Number of the writable layer of its workspace."""
    doom: Death | None = None
    """Why it is being killed."""

    async def heard(self, within_s: float) -> bool:
        """Whether its channel has something to say, or it has ended; waits for so long."""
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

    @property
    def number(self) -> int:
        """What the init knows it by: as it says itself; 0: the worker."""
        return 0 if self.is_root else self.pid
