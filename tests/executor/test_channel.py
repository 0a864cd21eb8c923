"""Frames from a sandbox, over a real socket: what is awaited, what comes unasked, and what is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tracemalloc
from collections.abc import Iterator

import pytest

from executor_service.guest.protocol import wire
from executor_service.sandbox.channel import Channel

SOON_S = 30.0


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, most=1 << 20, asks_sender=True)
    yield channel, theirs
    with contextlib.suppress(RuntimeError):
        channel.close()
    theirs.close()


def headed(head: bytes) -> bytes:
    return len(head).to_bytes(4, "little") + bytes(8) + head


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


async def test_a_large_frame_ends_where_the_next_begins(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    large = os.urandom(1 << 20)
    data = b"".join((wire.encode({"n": 0}, len(large)), large, wire.encode({"n": 1}, 1), b"x", wire.encode({"n": 2})))
    sending = asyncio.create_task(asyncio.to_thread(theirs.sendall, data))
    assert await frame(channel) == ({"n": 0}, large)
    assert [await frame(channel), await frame(channel)] == [({"n": 1}, b"x"), ({"n": 2}, b"")]
    await sending


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
        headed(b"[]"),
        headed(b"[" * 500),
        headed(json.dumps({"n": "x" * 1024}).encode()),
        headed(b'{"n":1e999}'),
        headed(b'{"n":NaN}'),
        headed(b'{"n":%d}' % 10**400),
        headed(b'{"n":%s}' % (b"[" * 490 + b"]" * 490)),
        headed(b'{"n":{}}'),
    ],
    ids=["end", "noise", "too large", "list", "too deep", "long", "infinite", "NaN", "huge", "deep", "object"],
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


async def test_a_frame_is_parsed_when_it_is_wanted_and_not_before(pair: tuple[Channel, socket.socket]) -> None:
    """Thousands fit into what is read at once."""
    channel, theirs = pair
    theirs.sendall(headed(b'{"n":0}') + headed(b'{"n":"\\ud800"}') + headed(b"no frame"))
    assert await frame(channel) == ({"n": 0}, b"")
    assert await frame(channel) == ({"n": "?"}, b"")  # text that a message can carry
    assert await frame(channel) is None


async def test_the_kernel_says_who_sent_the_first_frame(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    said = "import os, sys; os.write(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))"
    words = [sys.executable, "-c", said, str(theirs.fileno()), headed(b'{"n":0}').hex()]
    sender = await asyncio.create_subprocess_exec(*words, pass_fds=[theirs.fileno()])
    assert await frame(channel) == ({"n": 0}, b"")
    wire.send(theirs, {"n": 1})
    assert await frame(channel) == ({"n": 1}, b"")
    assert channel.sender == sender.pid
    assert await sender.wait() == 0


async def test_nothing_is_kept_of_a_channel_that_is_closed() -> None:
    """Not even while something still refers to it: the server looks for circles of what lives long seldom."""
    ours, theirs = socket.socketpair()
    most = 16 << 20
    channel = Channel(ours, most)
    waiting = asyncio.create_task(channel.receive())
    tracemalloc.start()
    with theirs:
        await asyncio.to_thread(theirs.sendall, wire.HEADER.pack(2, most) + b"{}" + bytes(most - 1))
        held = tracemalloc.get_traced_memory()[0]
        waiting.cancel()
        channel.close()
        freed = held - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert freed > most - (2 << 20), (held, freed)  # what the socket holds was not read yet


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
