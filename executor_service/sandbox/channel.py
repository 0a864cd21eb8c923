"""Frames between the server and something that serves in a sandbox, as `guest.protocol.wire` writes them.

Invariants: what comes from inside is untrusted. A frame is bounded by its first bytes; its head is one flat object of
valid text, finite numbers and 64-bit integers; one frame is parsed for each that is wanted; a frame that is none of
that ends the channel. Nothing is kept of a channel that is closed.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from executor_service.guest.protocol import wire

_AT_ONCE = 256 << 10
_HANDLES = b"H"
_CREDENTIALS = struct.Struct("=3i")
"""pid, uid and gid of a sender, as the kernel tells them."""
_INT64 = 1 << 63
Frame = tuple[dict[str, Any], bytes]


class Channel:
    """Owns `control`. One task may send, and one receive or listen, at a time. `most` bounds the bytes of a frame from
    inside, `most_head` those of its head. What comes while nobody waits for it is not read.

    `asks_sender`: the kernel is asked who sends the first frame, of which nothing may have been sent before.
    """

    def __init__(
        self, control: socket.socket, most: int, most_head: int = wire.MAX_HEAD, *, asks_sender: bool = False
    ) -> None:
        control.setblocking(False)
        self._control = control
        self._most, self._most_head = most, most_head
        self._came = bytearray()
        """Bytes that are no frame yet, or come behind `_next`."""
        self._large: tuple[dict[str, Any], BytesIO] | None = None
        """A frame of which `_missing` bytes have not come; what came of it is given away without a copy."""
        self._missing = 0
        self._next: Frame | None = None
        self._ended = False
        self.wrong = False
        """It has ended because what came is no frame; the other side may live on."""
        self._told: Callable[[], object] | None = None
        self._reading: asyncio.AbstractEventLoop | None = None
        """It stays registered from frame to frame, as they follow each other closely."""
        self._asks_sender = asks_sender
        self.sender = 0
        """The process that sent the first frame, by its number in the pid namespace of the server; 0: not known."""
        if asks_sender:
            control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

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
        """True if `take()` has something to say: a frame, or that none will come."""
        if self._next is None and (self._came or self._large) and not self._ended:
            self._parse()
        return self._next is not None or self._ended

    def take(self) -> Frame | None:
        """The next frame that is there."""
        taken = self._next if self.ready else None
        self._next = None
        return taken

    def listen(self, told: Callable[[], object]) -> None:
        """Calls `told` in the event loop when it is ready; to be asked for while it is not."""
        self._told = told
        if self._reading is None:
            self._reading = asyncio.get_running_loop()
            self._reading.add_reader(self._control, self._read)

    def ignore(self) -> None:
        """Nobody is told any more. Idempotent."""
        self._told = None

    async def receive(self) -> Frame | None:
        """The next frame; None when the other side is gone, or does not speak as it should."""
        if not self.ready:
            here = asyncio.Event()
            self.listen(here.set)
            try:
                await here.wait()
            finally:
                self.ignore()
        return self.take()

    async def blob(self) -> bytes:
        """The bytes of the next frame. ConnectionError where `receive` has none."""
        if (frame := await self.receive()) is None:
            raise ConnectionError
        return frame[1]

    def close(self) -> None:
        """Idempotent."""
        self._end()
        self._next = None
        self._control.close()

    def _read(self) -> None:
        if self._told is None:
            self._pause()  # nobody waits: what comes fills the socket, and no memory here
            return
        try:
            data = self._receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if self._large is not None:
            self._missing -= self._large[1].write(data)
        else:
            self._came += data
        if not data:
            self._end()
        if self.ready:
            told, self._told = self._told, None
            told()

    def _receive(self) -> bytes:
        most = min(self._missing, _AT_ONCE) or _AT_ONCE
        if not self._asks_sender:
            return self._control.recv(most)
        data, said, _, _ = self._control.recvmsg(most, socket.CMSG_SPACE(_CREDENTIALS.size))
        for _, kind, facts in said:
            if kind == socket.SCM_CREDENTIALS:
                self.sender = _CREDENTIALS.unpack(facts)[0]
        return data

    def _parse(self) -> None:
        """Makes `_next` of what came, if that holds a whole frame."""
        try:
            self._next = self._frame()
        except (ValueError, RecursionError):
            self.wrong = True
            self._end()

    def _frame(self) -> Frame | None:
        """ValueError and RecursionError for what is none."""
        if self._large is not None:
            if self._missing:
                return None
            (head, large), self._large = self._large, None
            return head, large.getvalue()
        if len(self._came) < wire.HEADER.size:
            return None
        length, size = wire.HEADER.unpack_from(self._came)
        if length > self._most_head or size > self._most:
            raise ValueError(f"a frame of {length} and {size} bytes is beyond the bounds")
        start = wire.HEADER.size + length
        missing = max(start + size - len(self._came), 0)
        if missing and (size <= _AT_ONCE or len(self._came) < start):
            return None
        with memoryview(self._came) as view:
            head = _flat(json.loads(str(view[wire.HEADER.size : start], "utf-8")))
            blob = bytes(view[start : start + size])
        if len(self._came) <= start + size:
            self._came = bytearray()
        else:
            del self._came[: start + size]
        if self._asks_sender:
            self._asks_sender = False
            self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        if missing:
            self._large, self._missing = (head, BytesIO()), missing
            self._large[1].write(blob)
            return None
        return head, blob

    def _end(self) -> None:
        self._ended = True
        self._came, self._large, self._missing = bytearray(), None, 0
        self._pause()

    def _pause(self) -> None:
        if self._reading is not None:
            self._reading.remove_reader(self._control)
            self._reading = None


def _flat(head: Any) -> dict[str, Any]:
    """A head whose values cost nobody anything, whatever is done with them. ValueError for another."""
    if type(head) is not dict:
        raise ValueError("a frame whose head is no object")
    for name, value in head.items():
        kind = type(value)  # of JSON, which makes nothing below these
        if kind is str:
            if not value.isascii():
                head[name] = value.encode("utf-8", "replace").decode()
        elif not (
            (kind is int and -_INT64 <= value < _INT64)
            or (kind is float and math.isfinite(value))
            or kind is bool
            or value is None
        ):
            raise ValueError("a value of a head that is no text, no finite number and no 64-bit integer")
    return head
