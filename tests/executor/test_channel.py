"""Frames from a sandbox, over a real socket: what is awaited, what comes unasked, and what is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from executor_service.sandbox.channel import Channel
from executor_service.sandbox.inside import wire

SOON_S = 5.0


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, most=1 << 20)
    yield channel, theirs
    with contextlib.suppress(RuntimeError):
        channel.close()
    theirs.close()


async def frame(channel: Channel) -> tuple[dict[str, object], bytes] | None:
    return await asyncio.wait_for(channel.receive(), SOON_S)


async def test_frames_come_in_order_however_they_are_cut(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    data = b"".join(wire.encode({"n": n}, 3) + b"abc" for n in range(3))
    first = asyncio.create_task(frame(channel))
    for cut in (data[:5], data[5:40], data[40:]):
        theirs.send(cut)
        await asyncio.sleep(0.01)
    assert await first == ({"n": 0}, b"abc")
    assert [await frame(channel), await frame(channel)] == [({"n": 1}, b"abc"), ({"n": 2}, b"abc")]
    assert not channel.ready


async def test_what_nobody_waits_for_is_not_read(pair: tuple[Channel, socket.socket]) -> None:
    """An interpreter that talks out of turn fills its own socket, and not the server's memory."""
    channel, theirs = pair
    wire.send(theirs, {"n": 0})
    assert await frame(channel) == ({"n": 0}, b"")
    theirs.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += theirs.send(wire.encode({"n": 1}))
            await asyncio.sleep(0)
    assert sent < 1 << 20
    assert not channel.ready
    assert await frame(channel) == ({"n": 1}, b"")


async def test_a_wait_that_is_given_up_loses_nothing(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(channel.receive(), 0.02)
    told: list[str] = []
    channel.listen(lambda: told.append("one"))
    channel.ignore()
    wire.send(theirs, {"n": 7})
    await asyncio.sleep(0.02)
    assert told == []
    assert await frame(channel) == ({"n": 7}, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 64,
        wire.encode({"n": 1}, (1 << 20) + 1),
        (2).to_bytes(4, "little") + bytes(8) + b"[]",
        (200_000).to_bytes(4, "little") + bytes(8) + b"[" * 200_000,
    ],
    ids=["end", "noise", "too large", "no object", "too deep"],
)
async def test_what_is_no_frame_ends_it(pair: tuple[Channel, socket.socket], data: bytes) -> None:
    channel, theirs = pair
    wire.send(theirs, {"n": 0})
    waiting = asyncio.create_task(frame(channel))
    assert await waiting == ({"n": 0}, b"")
    waiting = asyncio.create_task(frame(channel))
    await asyncio.sleep(0)
    theirs.sendall(data)
    if not data:
        theirs.close()
    assert await waiting is None
    assert channel.ready
    assert await frame(channel) is None


async def test_who_does_not_take_a_frame_in_time(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    with pytest.raises(TimeoutError):
        await channel.send({"n": 0}, bytes(8 << 20), within_s=0.1)
    theirs.close()
    with pytest.raises(OSError, match=r"[Bb]roken|reset"):
        await channel.send({"n": 0}, within_s=1)


async def test_handles_come_behind_their_frame(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    read, write = os.pipe()
    try:
        await channel.send({"n": 0}, b"blob", handles=[write], within_s=SOON_S)
        assert wire.receive(theirs) == ({"n": 0}, b"blob")
        _, (given,), _, _ = socket.recv_fds(theirs, 1, 4)
        os.write(given, b"x")
        os.close(given)
        assert os.read(read, 1) == b"x"
    finally:
        os.close(read)
        os.close(write)
