"""A bind that waits for a connection ends when the limiter is given up, and when its session is closed."""

from __future__ import annotations

import asyncio

import pytest

from limiter import ExecutorSession, Lease, LimiterUnavailable

NOWHERE = "127.0.0.1:1"
LEASE = Lease("code", 1, 1, "client")


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
