"""Counts the turns that run, and holds new ones back while the weights are being replaced.

Invariants: a turn runs only while the gate is open when it enters; every wait has a deadline; a waiter that is
cancelled leaves nothing behind. It belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from fairbox.clock import MonotonicClock
from rollout.engines.base import EngineStatistics, EngineUnavailable


class TurnGate:
    """`async with gate.turn(timeout_s)` around each piece of work; `close`, `drained` and `open` by who updates."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = 0
        """Turns inside."""

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
        try:
            async with asyncio.timeout(timeout_s):
                while not self._opened.is_set():  # it may have closed again before this task ran
                    await self._opened.wait()
        except TimeoutError:
            raise EngineUnavailable(f"the engine was paused for {timeout_s:.3g} s") from None


class TurnFigures:
    """Counts the turns of an engine: `with figures.turn(): ...` around each."""

    def __init__(self) -> None:
        self._clock = MonotonicClock()
        self._turns = 0
        self._busy_since = 0.0
        self._sums = EngineStatistics()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A turn that is counted as aborted if the block raises."""
        if not self._turns:
            self._busy_since = self._clock.now()
        self._turns += 1
        try:
            yield
        except BaseException:
            self.count(aborted=1)
            raise
        finally:
            self._turns -= 1
            if not self._turns:
                self.count(busy_s=self._clock.now() - self._busy_since)

    def count(self, **more: float) -> None:
        """Adds to the sums of these names."""
        sums = {name: getattr(self._sums, name) + value for name, value in more.items()}
        self._sums = replace(self._sums, **sums)

    def statistics(self, *, running: int) -> EngineStatistics:
        """As it is now. `running`: turns that have left their queues; the others wait."""
        busy_s = self._sums.busy_s + (self._clock.now() - self._busy_since if self._turns else 0.0)
        return replace(self._sums, running=running, queued=max(0, self._turns - running), busy_s=busy_s)
