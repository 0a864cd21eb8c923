"""Frames between the server and something that serves in a sandbox, as `inside.wire` writes them.

Invariants: what comes from inside is untrusted: sizes are bounded, and a frame that is no frame ends the channel.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from executor_service.sandbox.inside import wire

_AT_ONCE = 256 << 10
_HANDLES = b"H"


class Channel:
    """Owns `control`. One task may send, and one receive or listen, at a time. `most` bounds the bytes of a frame from
    inside. What comes while nobody waits for it is not read."""

    def __init__(self, control: socket.socket, most: int = wire.MAX_BLOB) -> None:
        control.setblocking(False)
        self._control = control
        self._decoder = wire.Decoder(most)
        self._frames: deque[tuple[dict[str, Any], bytes]] = deque()
        self._ended = False
        self._told: Callable[[], object] | None = None
        self._reading: asyncio.AbstractEventLoop | None = None
        """It stays registered from frame to frame, as they follow each other closely."""

    async def send(
        self, head: dict[str, Any], blob: bytes = b"", handles: Sequence[int] = (), *, within_s: float | None = None
    ) -> None:
        """ConnectionError when the other side is gone, TimeoutError when it does not take it in that time. `handles`
        are descriptors to be given to it; few."""
        data = wire.encode(head, len(blob)) + blob
        try:
            sent = self._control.send(data)  # usually all of it, and nothing has to be set up
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent == len(data) and not handles:
            return
        async with asyncio.timeout(within_s):
            await asyncio.get_running_loop().sock_sendall(self._control, memoryview(data)[sent:])
            await self._give(handles)

    async def _give(self, handles: Sequence[int]) -> None:
        while handles:
            try:
                socket.send_fds(self._control, [_HANDLES], list(handles))
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)

    @property
    def ready(self) -> bool:
        """Whether `take()` has something to say: a frame, or that none will come."""
        return bool(self._frames) or self._ended

    def take(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame that is there."""
        return self._frames.popleft() if self._frames else None

    def listen(self, told: Callable[[], object]) -> None:
        """Calls `told` in the event loop when it is ready; to be asked for while it is not."""
        self._told = told
        if self._reading is None:
            self._reading = asyncio.get_running_loop()
            self._reading.add_reader(self._control, self._read)

    def ignore(self) -> None:
        """Nobody is told any more. Idempotent."""
        self._told = None

    async def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the other side is gone, or does not speak as it should."""
        if not self.ready:
            here = asyncio.Event()
            self.listen(here.set)
            try:
                await here.wait()
            finally:
                self.ignore()
        return self.take()

    def close(self) -> None:
        """Idempotent."""
        self._ended = True
        self._pause()
        self._control.close()

    def _read(self) -> None:
        if self._told is None:
            self._pause()  # nobody waits: what comes fills the socket, and no memory here
            return
        try:
            data = self._control.recv(_AT_ONCE)
            self._frames.extend(self._decoder.feed(data))
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError, RecursionError):
            data = b""
        self._ended = not data
        if self.ready:
            told, self._told = self._told, None
            told()
        if self._ended:
            self._pause()

    def _pause(self) -> None:
        if self._reading is not None:
            self._reading.remove_reader(self._control)
            self._reading = None
