"""Limiters that never answer, or are not there: every wait ends, and is withdrawn."""

from __future__ import annotations

import asyncio

import pytest

from limiter import ExecutorSession, Lease, LimiterClient, LimiterUnavailable
from limiter.client import session
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import until

NOWHERE = "127.0.0.1:1"
LEASE = Lease("code", 1, 1, "client")


class _Silent:
    """A limiter that welcomes its clients and says nothing more: a connection, and the transport that opens it."""

    target = "silent"

    def __init__(self) -> None:
        self.sent: list[pb.SessionRequest] = []
        self._welcome: pb.SessionResponse | None = pb.SessionResponse(welcome=pb.Welcome(epoch=1))

    async def connect(self) -> _Silent:
        return self

    async def send(self, frame: pb.SessionRequest) -> None:
        self.sent.append(frame)

    async def receive(self) -> pb.SessionResponse:
        welcome, self._welcome = self._welcome, None
        if welcome is not None:
            return welcome
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    async def finish(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""


async def test_wait_that_is_never_answered_ends_and_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_QUEUE_BACKSTOP_S", 0.05)
    silent = _Silent()
    async with LimiterClient("silent", transport=silent) as client:
        await until(lambda: client.connected)  # from then on a request is sent before its time can be over
        with pytest.raises(LimiterUnavailable, match="silent did not answer in time"):
            async with client.lease(queue_timeout=0.05):
                raise AssertionError("granted by nobody")
        assert client.waiting == 0
        await asyncio.sleep(0.05)
        asked = [acquire.request_id for frame in silent.sent for acquire in (*frame.hello.queued, *frame.acquires)]
        assert len(asked) == 1
        assert [cancel.request_id for frame in silent.sent for cancel in frame.cancels] == asked


async def test_bind_ends_when_the_limiter_is_not_reachable_for_too_long() -> None:
    async with ExecutorSession(NOWHERE, unavailable_after=0.1) as session:
        with pytest.raises(LimiterUnavailable, match="is not available"):
            await asyncio.wait_for(session.bind(LEASE, timeout=300.0), 60)
        assert not session.held


async def test_bind_ends_when_the_session_is_closed() -> None:
    async with ExecutorSession(NOWHERE) as session:
        binding = asyncio.create_task(session.bind(LEASE, timeout=300.0))
        await asyncio.sleep(0)
    with pytest.raises(LimiterUnavailable, match="was closed"):
        await asyncio.wait_for(binding, 60)
