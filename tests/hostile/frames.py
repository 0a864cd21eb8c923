"""Frames of a session with the limiter that have very many parts. They are made when they are sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from fairbox.net.reading import varint
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import session_of

_PARTS = {
    "190,000 that ask for nothing": (b"\x22\x00", 190_000),
    "900,000 that ask for nothing": (b"\x22\x00", 900_000),
    "7,000,000 that ask for nothing": (b"\x22\x00", 7_000_000),
    "3,000,000 of fields nobody knows": (b"\xfa\x3f\x00", 3_000_000),
    "17 MiB": (b"\x1a\xff\xff\x3f" + bytes((1 << 20) - 1), 17),
}
"""Parts that a frame is made of, and the number of each."""
_SECRET = "f" * 32


def _frame(part: bytes, count: int) -> list[Message | bytes]:
    """After a hello."""
    hello = pb.Hello(session_id=session_of(_SECRET), secret=_SECRET, kind=pb.SESSION_KIND_CLIENT, connection=1)
    return [pb.SessionRequest(hello=hello), part * count]


def _hello(part: bytes, count: int) -> list[Message | bytes]:
    """As the field `hello` of the first frame."""
    return [b"\x0a" + varint(len(part) * count) + part * count]


LONG_FRAMES: dict[str, Callable[[], list[Message | bytes]]] = {
    f"{kind}: {name}": partial(make, *parts)
    for kind, make in (("a frame", _frame), ("a hello", _hello))
    for name, parts in _PARTS.items()
}
