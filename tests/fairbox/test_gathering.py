"""Work at once, of which the first error is told when all of it has ended."""

from __future__ import annotations

import asyncio

import pytest

from fairbox.gathering import all_of


async def test_results_come_in_the_order_of_the_work() -> None:
    async def later(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    assert await all_of(map(later, (0.02, 0.0, 0.01))) == [0.02, 0.0, 0.01]
    assert await all_of([]) == []


async def test_the_first_error_is_told_when_all_have_ended() -> None:
    ended: list[int] = []

    async def fails(number: int) -> None:
        await asyncio.sleep(0.02 / number)
        ended.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        await all_of(map(fails, (1, 2)))
    assert ended == [2, 1]
