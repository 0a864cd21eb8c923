"""Several pieces of work at once, of which none is left behind when another fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Results of all, in their order. When all have ended, raises the error of the first that failed."""
    results: list[T] = []
    for each in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results
