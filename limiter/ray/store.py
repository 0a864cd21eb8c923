"""The few facts that outlive a limiter's actor, kept in the key-value store of Ray's control service.

They live as long as the Ray cluster does. Its calls block, so they run in a thread, each with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ray.experimental import internal_kv

__all__ = ["ClusterStore"]

T = TypeVar("T")
_WITHIN_S = 2.0
"""A control service that does not answer for so long can't be reached."""


class ClusterStore:
    """Keys of one limiter. Every method raises TimeoutError, or what Ray raises, when there is no answer."""

    def __init__(self, namespace: str, name: str) -> None:
        self._space = f"{namespace}.limiter".encode()
        self._name = name

    async def get(self, key: str) -> bytes | None:
        """The value, or None."""
        value: bytes | None = await _call(lambda: internal_kv._internal_kv_get(self._key(key), namespace=self._space))
        return value

    async def put(self, key: str, value: bytes) -> None:
        """Sets a value, whatever it was."""
        await _call(lambda: internal_kv._internal_kv_put(self._key(key), value, True, namespace=self._space))

    async def claim(self, key: str, value: bytes) -> bool:
        """Sets a value if there is none, atomically; whether there was none."""
        existed = await _call(lambda: internal_kv._internal_kv_put(self._key(key), value, False, namespace=self._space))
        return not existed

    def _key(self, key: str) -> bytes:
        return f"{self._name}:{key}".encode()


async def _call(function: Callable[[], T]) -> T:
    async with asyncio.timeout(_WITHIN_S):
        return await asyncio.to_thread(function)
