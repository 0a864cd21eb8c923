"""Frames on the control socket: a JSON object with a `type`, and bytes that belong to it.

A frame is 4 bytes of length of the object, 8 bytes of length of the bytes (little endian), the object, the bytes.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import socket
    from typing import Any

    Head = dict[str, Any]

HEADER = struct.Struct("<IQ")
_AT_ONCE = 256 << 10
_decode = json.JSONDecoder().decode
"""`json.loads` without its search for an encoding."""
MAX_HEAD = 1 << 10
"""Bytes of a head that code of a program can write: numbers, names and one sentence. What is longer goes with the
bytes of its frame."""
MAX_SENTENCE = 768
"""Bytes of the sentence."""
MAX_TABLE = 64 << 10
"""Bytes of what says how the bytes of an answer are divided: up to 256 files, up to 256 displays of some forms each.
It is JSON that is parsed in the server's event loop, where this much takes a millisecond."""
MAX_ANSWER = 16 << 20
"""Bytes that come with an answer of an interpreter of a session: all that the server ever holds for it."""


def encode(head: Head, size: int = 0) -> bytes:
    """The beginning of a frame, to be followed by `size` bytes."""
    text = json.dumps(head).encode()
    return HEADER.pack(len(text), size) + text


def short(text: str) -> str:
    """Its beginning, as far as a head has room for it."""
    text = text[:MAX_SENTENCE]
    while len(json.dumps(text)) > MAX_SENTENCE:
        text = text[: len(text) * 3 // 4]
    return text


def send(control: socket.socket, head: Head, blob: bytes = b"") -> None:
    control.sendall(encode(head, len(blob)))
    if blob:
        control.sendall(blob)


def receive(control: _socket.socket) -> tuple[Head, bytes]:
    """The next frame, blocking. EOFError when the other side is gone."""
    length, size = HEADER.unpack(_exactly(control, HEADER.size))
    data = _exactly(control, length + size)
    view = memoryview(data)
    return _decode(str(view[:length], "utf-8")), bytes(view[length:])


def _exactly(control: _socket.socket, size: int) -> bytes | bytearray:
    if size <= _AT_ONCE:
        text = control.recv(size)  # usually all of it
        if len(text) == size:
            return text
    else:
        text = b""
    data = bytearray(size)
    data[: len(text)] = text
    view = memoryview(data)[len(text) :]
    while view:
        count = control.recv_into(view)
        if count == 0:
            raise EOFError("the control socket was closed")
        view = view[count:]
    return data


class GuestChannel:
    """Frames over a socket, blocking, from inside."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def fileno(self) -> int:
        return self._control.fileno()

    def receive(self) -> tuple[Head, bytes] | None:
        """The next frame; None when the other side is gone."""
        try:
            return receive(self._control)
        except (EOFError, ConnectionError):
            return None

    def receive_handles(self, most: int) -> list[int]:
        """The descriptors that came with the last frame."""
        import socket

        return list(socket.recv_fds(self._control, 1, most, socket.MSG_CMSG_CLOEXEC)[1])

    def send(self, head: Head, blob: bytes = b"") -> None:
        """BrokenPipeError when the other side is gone."""
        send(self._control, head, blob)
