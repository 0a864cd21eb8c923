"""The limiter's times and its bounds on sessions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CLOCK_RATE_ERROR", "SILENCE_MARGIN_S", "Timing"]

CLOCK_RATE_ERROR = 0.01
"""How much faster or slower than another machine's a monotonic clock may run. Real ones differ by less than 0.1 %."""
SILENCE_MARGIN_S = 0.1
"""Added to every wait for an executor's end: the time that killing its work may take."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds."""

    grace: float = 1.5
    """A client's session outlives its stream by this: enough to reconnect, short enough that a dead client costs
    little."""
    executor_ttl: float = 6.0
    """An executor may run bound work for this long (less 2 %) after sending a heartbeat that was acknowledged."""
    client_return: float = 1.0
    """After a restart nothing is granted for this long where somebody had to be waited for: clients, which try to
    reconnect at least every 0.5 s, bring their tickets back, and the order holds."""
    tombstone_ttl: float = 60.0
    """How long the end of a unary request is remembered."""
    max_sessions: int = 10_000
    max_tombstones: int = 100_000

    @property
    def executor_silence(self) -> float:
        """After this long without a word, an executor has provably stopped its work, even with a slow clock."""
        return self.executor_ttl * (1 + 2 * CLOCK_RATE_ERROR) + SILENCE_MARGIN_S

    @property
    def executor_validity(self) -> float:
        """How long an executor may run on one acknowledged heartbeat, by its own clock, counted from sending it."""
        return self.executor_ttl * (1 - 2 * CLOCK_RATE_ERROR)
