"""A storm of requests that are given up leaves no token held, no request queued, and no memory behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.limiter.chaos.storm import STREAM, UNARY, storm
from tests.limiter.servers import LimiterProcess, limiter_process

_SHORT = 900
_WHOLE = 6_000
_REMEMBERED_S = 61.0
"""The limiter remembers the end of a unary request for 60 s; the memory is used again, and not given back."""
_GROWTH_KIB = 0.3
"""Most memory that one request may leave behind."""


@pytest.fixture
async def limiter() -> AsyncIterator[LimiterProcess]:
    async with limiter_process("buckets.code.max_in_flight=4") as process:
        yield process


async def _is_empty(limiter: LimiterProcess) -> None:
    """Raises TimeoutError when something is still held or queued after the grace of the clients."""
    async with asyncio.timeout(10):
        while True:
            bucket = await limiter.bucket()
            if not bucket.held and not bucket.queued:
                return
            await asyncio.sleep(0.05)


async def test_storm_leaves_nothing(limiter: LimiterProcess) -> None:
    tally = await storm(limiter.address, _SHORT, STREAM + UNARY, seed=1)
    await _is_empty(limiter)
    assert min(tally.granted, tally.given_up) > _SHORT / 20, tally


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ways", [STREAM, UNARY], ids=["stream", "unary"])
async def test_great_storm_leaves_nothing_and_no_memory(limiter: LimiterProcess, ways: tuple[str, ...]) -> None:
    await storm(limiter.address, _WHOLE, ways, seed=1)
    await _is_empty(limiter)
    if ways == UNARY:
        await asyncio.sleep(_REMEMBERED_S)
    before = limiter.resident_kib()
    tally = await storm(limiter.address, _WHOLE, ways, seed=2)
    await _is_empty(limiter)
    growth = (limiter.resident_kib() - before) / _WHOLE
    print(f"{tally}, {growth:.2f} KiB a request")  # noqa: T201 - how near the bar
    assert min(tally.granted, tally.given_up) > _WHOLE / 20, tally
    assert growth < _GROWTH_KIB
