"""Frames between the server and something that serves in a sandbox, as `inside.wire` writes them.

Invariants: what comes from inside is untrusted: sizes are bounded, and a frame that is no frame ends the channel.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

from executor_service.sandbox.inside import wire

__all__ = ["Channel"]

_AT_ONCE = 256 << 10
_HANDLES = b"H"


class Channel:
    """Owns `control`. One task may send and one receive at a time. `most` bounds the bytes of a frame from inside."""

    def __init__(self, control: socket.socket, most: int = wire.MAX_BLOB) -> None:
        control.setblocking(False)
        self._control = control
        self._decoder = wire.Decoder(most)
        self._frames: deque[tuple[dict[str, Any], bytes]] = deque()
        self._ended = False

    async def send(self, head: dict[str, Any], blob: bytes = b"", handles: Sequence[int] = ()) -> None:
        """ConnectionError when the other side is gone. `handles` are descriptors to be given to it; few."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._control, wire.encode(head, len(blob)) + blob)
        while handles:
            try:
                socket.send_fds(self._control, [_HANDLES], list(handles))
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)

    async def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None when the other side is gone, or does not speak as it should."""
        loop = asyncio.get_running_loop()
        while not self._frames and not self._ended:
            try:
                data = await loop.sock_recv(self._control, _AT_ONCE)
                self._frames.extend(self._decoder.feed(data))
            except (OSError, ValueError, RecursionError):
                data = b""
            self._ended = not data
        return self._frames.popleft() if self._frames else None

    def close(self) -> None:
        """Idempotent."""
        self._ended = True
        self._control.close()
