"""Counts the turns that run, and holds new ones back while the weights are being replaced.

Invariants: a turn runs only while the gate is open when it enters; every wait has a deadline; a waiter that is
cancelled leaves nothing behind. It belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rollout.engines.base import EngineUnavailable


class TurnGate:
    """`async with gate.turn(timeout_s)` around each piece of work; `close`, `drained` and `open` by who updates."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = 0
        """Turns inside."""
        self.waiting = 0
        """Turns that wait for it to open."""

    @contextlib.asynccontextmanager
    async def turn(self, timeout_s: float) -> AsyncIterator[None]:
        """Waits until the gate is open. Raises EngineUnavailable after `timeout_s`."""
        await self._wait_open(timeout_s)
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    def close(self) -> None:
        """Lets no further turn in. Idempotent."""
        self._opened.clear()

    def open(self) -> None:
        """Lets turns in. Idempotent."""
        self._opened.set()

    async def drained(self, timeout_s: float) -> None:
        """Returns when no turn is inside. Raises EngineUnavailable after `timeout_s`."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            text = f"{self.running} turns still ran after {timeout_s:g} s, so the weights were not replaced"
            raise EngineUnavailable(text) from None

    async def _wait_open(self, timeout_s: float) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while not self._opened.is_set():  # it may have closed again before this task ran
                    await self._opened.wait()
        except TimeoutError:
            raise EngineUnavailable(f"the engine was paused for {timeout_s:.3g} s") from None
        finally:
            self.waiting -= 1
