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

_HEADER = struct.Struct("<IQ")
_AT_ONCE = 256 << 10
_decode = json.JSONDecoder().decode
"""`json.loads` without its search for an encoding."""
MAX_HEAD = 4 << 20
"""Largest object: the paths and arguments of the largest request are far below."""
MAX_BLOB = 160 << 20
"""Most bytes of one frame: 64 MiB of files, the standard input and the code of a request are below."""


def encode(head: Head, size: int = 0) -> bytes:
    """The beginning of a frame, to be followed by `size` bytes."""
    text = json.dumps(head).encode()
    return _HEADER.pack(len(text), size) + text


def send(control: socket.socket, head: Head, blob: bytes = b"") -> None:
    control.sendall(encode(head, len(blob)))
    if blob:
        control.sendall(blob)


def receive(control: _socket.socket) -> tuple[Head, bytes]:
    """The next frame, blocking. EOFError when the other side is gone."""
    length, size = _HEADER.unpack(_exactly(control, _HEADER.size))
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


class Channel:
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


class Decoder:
    """Turns bytes as they arrive into frames. ValueError for a frame beyond the bounds."""

    def __init__(self, most: int = MAX_BLOB) -> None:
        self._buffer = bytearray()
        self._most = most

    def feed(self, data: bytes) -> list[tuple[Head, bytes]]:
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER.size:
            length, size = _HEADER.unpack_from(self._buffer)
            if length > MAX_HEAD or size > self._most:
                raise ValueError(f"a frame of {length} and {size} bytes is beyond the bounds")
            end = _HEADER.size + length + size
            if len(self._buffer) < end:
                break
            head = json.loads(self._buffer[_HEADER.size : _HEADER.size + length])
            if not isinstance(head, dict):
                raise ValueError("a frame whose head is no object")
            frames.append((head, bytes(self._buffer[_HEADER.size + length : end])))
            del self._buffer[:end]
        return frames
