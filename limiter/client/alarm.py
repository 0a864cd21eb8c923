"""A timer that sets an event, cheap where its time is put off again and again."""

from __future__ import annotations

import asyncio

__all__ = ["Alarm"]


class Alarm:
    """Rings no later than the last time that it was set to; it may ring before that. Make it inside the running loop,
    and `cancel()` it."""

    __slots__ = ("_event", "_loop", "_rings_at", "_timer")

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
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
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._ring)

    def cancel(self) -> None:
        """It does not ring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, float("inf")

    def _ring(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        self._event.set()
