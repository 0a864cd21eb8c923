"""Requests that are parsed by us: the same messages as gRPC would have made, in pieces, within bounds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fairbox.errors import FieldErrors
from fairbox.net.reading import _PIECE, _Walk, parse
from limiter.v1 import limiter_pb2 as pb

MANY = 25_000
"""Leases or requests, of some nine parts each."""


def frame(seed: int) -> pb.SessionRequest:
    """One of several pieces, with something of every kind."""
    drawn = random.Random(seed)
    made = pb.SessionRequest(heartbeat=drawn.getrandbits(60), goodbye=True)
    made.hello.session_id, made.hello.name = "s" * 32, "name"
    for seq in range(MANY):
        held = made.hello.held.add(tokens=drawn.getrandbits(20), hold_s=drawn.random(), proof=drawn.randbytes(8))
        held.lease.bucket, held.lease.epoch, held.lease.seq = "code", drawn.getrandbits(60), seq
        made.hello.queued.add(request_id=str(seq), tokens=drawn.getrandbits(3)).ticket.seq = seq
        made.cancels.add(request_id=f"{seq}x")
        made.acquires.add()
    return made


def test_pieces_make_the_same_message() -> None:
    made = frame(0)
    data = made.SerializeToString()
    # Fields may come in any order, a message in parts, and fields that nobody knows among them.
    other = pb.SessionRequest(hello=pb.Hello(name="another", held=[pb.HeldLease(tokens=7)]))
    data = b"\xfa\x3f\x02hi" + other.SerializeToString() + data + other.SerializeToString()
    assert len(_Walk(data, 1 << 30).pieces(pb.SessionRequest.DESCRIPTOR)) > 5
    parsed = parse(pb.SessionRequest, data, 1 << 30)
    assert parsed == pb.SessionRequest.FromString(data)
    assert parsed.SerializeToString(deterministic=True) == pb.SessionRequest.FromString(data).SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("data", [frame(9).SerializeToString(), b"\x22\x00" * 3 * _PIECE], ids=["usual", "empty"])
def test_no_piece_has_many_parts(data: bytes) -> None:
    for piece in _Walk(data, 1 << 30).pieces(pb.SessionRequest.DESCRIPTOR):
        walk = _Walk(piece, 2 * _PIECE)  # FieldErrors for one of more
        walk.pieces(pb.SessionRequest.DESCRIPTOR)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"\x22\x00" * 200_001, "acquires brings the request to more than 200000 parts, which is the most"),
        (b"\x0a\x94\xeb\x18" + b"\x22\x00" * 202_250, "hello brings the request to more than 200000 parts"),
        (b"\xfa\x3f\x00" * 200_001, "an unknown field brings the request to more"),
    ],
    ids=["flat", "nested", "unknown"],
)
def test_too_many_parts_are_refused_by_name(data: bytes, field: str) -> None:
    with pytest.raises(FieldErrors, match=field):
        parse(pb.SessionRequest, data)


def cut(data: bytes) -> Any:
    return pytest.param(data, id=f"{len(data)} bytes")


HELLO = b"\x0a\x80\x80\x20" + b"\x22\x00" * (1 << 18)
"""A hello of half a MiB."""


@pytest.mark.parametrize(
    "data",
    [
        cut(b"\x22"),
        cut(HELLO[:-1]),
        cut(HELLO[:-2] + b"\x22\x05"),
        cut(HELLO + b"\x22\x05"),
        cut(HELLO + b"\x0b" * 9),
        cut(HELLO + b"\x30" + b"\xff" * 11),
    ],
)
def test_what_is_no_message_is_refused_as_the_library_does(data: bytes) -> None:
    with pytest.raises(Exception, match="parsing"):
        pb.SessionRequest.FromString(data)
    with pytest.raises(FieldErrors, match="SessionRequest is no message of this name"):
        parse(pb.SessionRequest, data, 1 << 30)
