"""One client per process, event loop and target."""

from __future__ import annotations

import asyncio
import os

import pytest

from limiter import LimiterClient, LimiterUnavailable, shared_client
from tests.limiter.servers import limiter_server, until


async def test_all_tasks_of_a_loop_share_one_session() -> None:
    async with limiter_server(max_in_flight=4) as server:
        seen: list[LimiterClient] = []

        async def use() -> None:
            async with shared_client(server.address) as client, client.lease():
                seen.append(client)
                await until(lambda: len(seen) == 3)

        async with shared_client(server.address) as first:
            await asyncio.gather(use(), use(), use())
            assert seen == [first] * 3
            assert server.statistics().sessions == 1
            async with first.lease():
                pass
        with pytest.raises(LimiterUnavailable, match="not open"):
            async with first.lease():
                pass
        async with shared_client(server.address) as second, second.lease():
            assert second is not first


async def test_another_loop_has_a_client_of_its_own() -> None:
    async with limiter_server() as server, shared_client(server.address) as ours:

        async def other() -> LimiterClient:
            async with shared_client(server.address) as client, client.lease():
                return client

        assert await asyncio.to_thread(lambda: asyncio.run(other())) is not ours


async def test_targets_are_apart() -> None:
    async with (
        limiter_server() as one,
        limiter_server() as two,
        shared_client(one.address) as first,
        shared_client(two.address) as second,
    ):
        assert first is not second


async def test_what_was_made_before_a_fork_is_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with limiter_server() as server, shared_client(server.address) as ours:
        monkeypatch.setattr(os, "getpid", lambda: 1)
        async with shared_client(server.address) as childs, childs.lease():
            assert childs is not ours
        monkeypatch.undo()
