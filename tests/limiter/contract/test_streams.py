"""Streams over calls, without Ray: what a faulty or a dead caller costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from fairbox.clock import MonotonicClock
from limiter.core import BucketLimits, LimiterCore, Timing
from limiter.server.hub import Hub
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import until

pytest.importorskip("ray", reason="ray is not installed (extra `ray`)")

from limiter.ray.streams import Streams

POLL, SILENCE = 0.1, 0.15


def hello(session_id: str) -> bytes:
    """The first frame."""
    return pb.SessionRequest(hello=pb.Hello(session_id=session_id, kind=pb.SESSION_KIND_CLIENT)).SerializeToString()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    clock = MonotonicClock()
    core = LimiterCore(1, [BucketLimits("code", 1)], now=clock.now(), timing=Timing(grace=0.1))
    hub = Hub(core, clock)
    yield hub
    hub.close()


@pytest.fixture
async def streams(hub: Hub) -> Streams:
    return Streams(hub, poll=POLL, silence=SILENCE, max_streams=2)


async def test_frames_come_as_answers_to_polls(streams: Streams) -> None:
    assert streams.open("s") == ""
    assert streams.send("s", 1, hello("c")) == ""
    data = await streams.receive("s")
    assert data is not None
    assert pb.SessionResponse.FromString(data).HasField("welcome")
    started = time.monotonic()
    assert await streams.receive("s") == b""
    assert time.monotonic() - started >= POLL * 0.9
    streams.finish("s")
    assert await streams.receive("s") is None
    assert len(streams) == 0


async def test_stream_without_polls_ends_like_a_lost_connection(streams: Streams, hub: Hub) -> None:
    streams.open("s")
    streams.send("s", 1, hello("c"))
    streams.send("s", 2, pb.SessionRequest(acquires=[pb.Acquire(request_id="r")]).SerializeToString())
    for _ in range(4):
        await streams.receive("s")
        await asyncio.sleep(SILENCE / 3)
    assert len(streams) == 1, "polls keep it alive"
    assert hub.core.statistics(hub.clock.now()).held == 1
    await until(lambda: len(streams) == 0, within=30)
    await until(lambda: hub.core.statistics(hub.clock.now()).held == 0, within=30)
    assert streams.send("s", 3, b"") == "the limiter has ended the stream"


async def test_lost_or_repeated_frame_ends_the_stream(streams: Streams) -> None:
    streams.open("s")
    assert streams.send("s", 1, hello("c")) == ""
    assert streams.send("s", 1, b"") == "frame 1 came after frame 1"
    assert len(streams) == 0
    streams.open("t")
    assert streams.send("t", 1, b"\xff") != ""
    assert len(streams) == 0


async def test_number_of_streams_is_bounded(streams: Streams) -> None:
    assert [streams.open(name) for name in ("a", "b", "c")] == ["", "", "2 streams are open, which is all that may"]
    assert streams.open("a") == "stream a is open already"
    streams.close("a")
    assert streams.open("c") == ""
    for name in ("b", "c"):
        streams.close(name)
