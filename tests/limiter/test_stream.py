"""Session streams of raw messages: what a client in another language sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from fairbox.net.channels import open_channel
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import limiter_server, raw_hello, unary_stub, until

Stream = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


@asynccontextmanager
async def raw_session(server: LimiterServer, hello: pb.Hello | None) -> AsyncIterator[Stream]:
    """A session stream of generated messages."""
    async with unary_stub(server) as stub:
        stream: Stream = stub.Session()
        if hello is not None:
            await stream.write(pb.SessionRequest(hello=hello))
        yield stream
        stream.cancel()


async def read(stream: Stream) -> pb.SessionResponse:
    async with asyncio.timeout(30):
        frame = await stream.read()
    assert isinstance(frame, pb.SessionResponse), await stream.details()
    return frame


async def refusal(stream: Stream) -> tuple[grpc.StatusCode, str]:
    """Status and sentence with which the server ends a stream; frames before that are skipped."""
    async with asyncio.timeout(30):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await stream.read() is not grpc.aio.EOF:
                continue
        return await stream.code(), await stream.details()


async def test_welcome_is_the_first_frame_and_many_requests_share_one() -> None:
    async with limiter_server(2) as server, raw_session(server, raw_hello()) as stream:
        first = await read(stream)
        assert first.HasField("welcome")
        assert first.welcome.ttl_s == 6.0
        acquires = [pb.Acquire(request_id=str(number)) for number in range(5)]
        await stream.write(pb.SessionRequest(acquires=acquires))
        frame = await read(stream)
        assert [grant.request_id for grant in frame.grants] == ["0", "1"]
        assert [each.request_id for each in frame.queued] == ["2", "3", "4"]
        releases = [pb.Release(lease=grant.lease) for grant in frame.grants]
        await stream.write(pb.SessionRequest(releases=releases))
        assert [grant.request_id for grant in (await read(stream)).grants] == ["2", "3"]


async def test_bad_request_is_rejected_alone() -> None:
    async with limiter_server() as server, raw_session(server, raw_hello()) as stream:
        await read(stream)
        bad = [
            pb.Acquire(request_id="a b"),
            pb.Acquire(request_id="t", queue_timeout_s=float("nan")),
            pb.Acquire(request_id="b", bucket="gpu"),
            pb.Acquire(request_id="good"),
        ]
        await stream.write(pb.SessionRequest(acquires=bad))
        frame = await read(stream)
        assert [reject.message.split()[0] for reject in frame.rejects] == [
            "request_id",
            "queue_timeout_s",
            "bucket",
        ]
        assert [grant.request_id for grant in frame.grants] == ["good"]


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (pb.SessionRequest(heartbeat=1), "hello"),
        (pb.SessionRequest(hello=pb.Hello(kind=pb.SESSION_KIND_CLIENT)), "hello.session_id"),
        (pb.SessionRequest(hello=raw_hello("x", pb.SESSION_KIND_UNSPECIFIED)), "hello.kind"),
        (pb.SessionRequest(hello=pb.Hello(session_id="unary:me", kind=pb.SESSION_KIND_CLIENT)), "hello.secret"),
        (
            pb.SessionRequest(hello=raw_hello("x", pb.SESSION_KIND_EXECUTOR, held=[pb.HeldLease(tokens=1 << 30)])),
            "hello.held[0].tokens",
        ),
        (pb.SessionRequest(hello=raw_hello(), binds=[pb.Bind()]), "binds"),
    ],
)
async def test_stream_that_breaks_the_protocol_ends_with_the_field(frame: pb.SessionRequest, field: str) -> None:
    async with limiter_server() as server, raw_session(server, None) as stream:
        await stream.write(frame)
        code, sentence = await refusal(stream)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence.startswith(f"{field} ")
        await until(lambda: server.statistics().held == 0)


@pytest.mark.parametrize(
    ("part", "count", "status", "said"),
    [
        (b"\x22\x00", 200_001, grpc.StatusCode.INVALID_ARGUMENT, "acquires brings the request to more than 200000"),
        (b"\x22\x00", 8 << 20 | 1, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
        (b"\x22", 1, grpc.StatusCode.INVALID_ARGUMENT, "SessionRequest is no message of this name"),
    ],
    ids=["parts", "bytes", "no message"],
)
async def test_frames_are_bounded(part: bytes, count: int, status: grpc.StatusCode, said: str) -> None:
    async with limiter_server() as server, open_channel(server.address) as channel:
        path, first = "/limiter.v1.LimiterService/Session", pb.SessionRequest(hello=raw_hello()).SerializeToString()
        call: Any = channel.stream_stream(path, response_deserializer=pb.SessionResponse.FromString)
        stream: Stream = call(iter([first, part * count]))
        code, details = await refusal(stream)
        assert code is status, details
        assert said in details


async def test_second_hello_is_refused() -> None:
    async with limiter_server() as server, raw_session(server, raw_hello()) as stream:
        await read(stream)
        await stream.write(pb.SessionRequest(hello=raw_hello()))
        assert (await refusal(stream))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_newer_stream_replaces_the_older_one_of_its_session() -> None:
    async with limiter_server() as server, raw_session(server, raw_hello()) as old:
        await read(old)
        async with raw_session(server, raw_hello()) as new:
            assert (await read(new)).HasField("welcome")
            assert (await read(old)).go_away.reason == "another stream has resumed this session"
            assert (await refusal(old))[0] is grpc.StatusCode.OK
            await new.write(pb.SessionRequest(acquires=[pb.Acquire(request_id="1")]))
            assert (await read(new)).grants[0].request_id == "1"


async def test_hello_of_another_kind_is_sent_away_and_harms_nobody() -> None:
    async with limiter_server() as server, raw_session(server, raw_hello()) as stream:
        await read(stream)
        async with raw_session(server, None) as impostor:
            kind = raw_hello(kind=pb.SESSION_KIND_EXECUTOR)
            await impostor.write(pb.SessionRequest(hello=kind, acquires=[pb.Acquire(request_id="theirs")]))
            assert "another kind" in (await read(impostor)).go_away.reason
        await stream.write(pb.SessionRequest(acquires=[pb.Acquire(request_id="1")]))
        assert (await read(stream)).grants[0].request_id == "1"
        assert server.statistics().held == 1


async def test_silent_executor_is_sent_away() -> None:
    executor = raw_hello("executor", pb.SESSION_KIND_EXECUTOR)
    async with limiter_server(executor_ttl_s=0.3) as server, raw_session(server, executor) as stream:
        assert (await read(stream)).HasField("welcome")
        assert (await read(stream)).go_away.reason == "it was silent for too long"
        assert server.statistics().executors == 0
