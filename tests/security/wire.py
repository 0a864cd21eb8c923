"""HTTP/2 as somebody sends it who means harm: frames by hand, connections that go nowhere."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

_DATA, _HEADERS, _RESET, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_HEADERS = 4
_TIMEOUT_S = 5.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0)
PING = frame(_PING, 0, 0, b"8 bytes.")
SETTINGS = frame(_SETTINGS, 0, 0)


def headers(stream: int, path: str) -> bytes:
    """The beginning of a call that has no token, and whose message never comes."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path.encode(),
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    block = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in fields.items())
    return frame(_HEADERS, _END_HEADERS, stream, block)


def reset(stream: int) -> bytes:
    """The client wants no answer any more."""
    return frame(_RESET, 0, stream, struct.pack(">I", 8))


@contextlib.contextmanager
def many(address: str, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, on which `first` was said. Those that are refused are missing."""
    host, _, port = address.rpartition(":")
    found: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                connection = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
                found.append(connection)
                if first:
                    connection.sendall(first)
        yield found
    finally:
        for connection in found:
            connection.close()


def cut_off(connection: socket.socket) -> bool:
    """Says whether the server has closed it."""
    connection.setblocking(False)
    try:
        while said := connection.recv(65_536):
            assert said
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def pour(address: str, first: bytes, again: bytes, count: int) -> int:
    """Sends `again` so often on one connection, as fast as the server takes it; how often it did before it stopped
    reading or closed the connection. What it answers is not read."""
    with many(address, 1, first) as (connection,):
        connection.settimeout(0.5)
        for sent in range(count):
            try:
                connection.sendall(again)
            except OSError:
                return sent
    return count
