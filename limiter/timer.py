"""A timer for a next deadline that keeps changing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `ring` no later than the last time that it was set to; it may do so before that. Make it inside the running
    loop, and `cancel()` it."""

    __slots__ = ("_loop", "_ring", "_rings_at", "_timer")

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._rings_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def set(self, now: float, deadline: float) -> None:
        """Rings at `deadline`, both by the same clock in seconds. One that is set to ring earlier is left alone: when
        it does, whoever hears it looks what is due, and sets it again."""
        if deadline >= self._rings_at:
            return
        self.cancel()
        self._rings_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._rung)

    def cancel(self) -> None:
        """It does not ring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, float("inf")

    def _rung(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        self._ring()
