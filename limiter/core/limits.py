"""Limits of a bucket, and the limiter's times, as frozen facts; and which values are acceptable.

One list of checks serves the configuration file and the operators' RPC; both call the fields by the same names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from limiter.core.reasons import BucketOrder

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
MAX_TOKENS = 1_000_000
"""Largest limit of a bucket, and weight of a lease, so that counts fit where they are shown."""
MAX_QUEUED = 10_000_000
MIN_RATE = 0.001
"""Slowest rate, one grant in 1,000 s: below it a wait is longer than any queue timeout that people choose."""
MAX_RATE = 1_000_000.0
MAX_TIME_S = 86_400.0
"""Longest queue timeout, hold time and time to bind."""


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """Limits of a bucket."""

    name: str
    max_in_flight: int = 10
    """Most tokens held at once."""
    max_queued: int = 100_000
    """Most requests that wait."""
    max_queued_per_client: int = 10_000
    """Most requests of one session that wait: a client that asks without end leaves room for the others."""
    start_by: float = 5.0
    """A grant that no executor has bound within this many seconds ends."""
    rate_per_s: float = 0.0
    """Most leases granted per second on average; 0: any number."""
    burst: int = 0
    """Most leases granted at once under a rate; 0: the rate, rounded up."""
    order: BucketOrder = BucketOrder.FIFO
    adaptive: bool = False
    """True if the limit adapts to overload, below `max_in_flight`."""
    paused: bool = False
    """Nothing is granted; requests queue."""
    max_hold: float = 0.0
    """Longest time for which a lease that nobody binds is given, seconds; 0: such leases are not given."""
    version: int = 1
    """Counts the changes, from 1."""

    @property
    def most_at_once(self) -> int:
        """Leases that the rate lets through at once; only with a rate."""
        return self.burst or math.ceil(self.rate_per_s)

    def problems(self) -> Iterator[tuple[str, str]]:
        """(field, what is wrong with it) for each value that is not acceptable."""
        if not _NAME.fullmatch(self.name):
            yield "name", f"is {self.name[:70]!r}, must be 1 to 64 letters, digits, '.', '_' or '-'"
        yield from _within("max_in_flight", self.max_in_flight, 1, MAX_TOKENS)
        yield from _within("max_queued", self.max_queued, 1, MAX_QUEUED)
        yield from _within("start_by_s", self.start_by, 0.01, MAX_TIME_S)
        if self.rate_per_s != 0:
            yield from _within("rate_per_s", self.rate_per_s, MIN_RATE, MAX_RATE, "0, or ")
        yield from _within("burst", self.burst, 0, MAX_TOKENS)
        yield from _within("max_hold_s", self.max_hold, 0.0, MAX_TIME_S)

    def refusal(self, tokens: int, hold: float) -> str:
        """Why a request can never be granted within these limits; "" when it can. The first word is the field."""
        if tokens > self.max_in_flight:
            return f"tokens is {tokens}, must be at most {self.max_in_flight}, the limit of {self.name}"
        if hold and not self.max_hold:
            return f"hold_s is {hold:g}, but leases of {self.name} have to be bound: its max_hold_s is 0"
        if hold > self.max_hold:
            return f"hold_s is {hold:g}, must be at most {self.max_hold:g}, the max_hold_s of {self.name}"
        return ""


def _within(field: str, value: float, low: float, high: float, other: str = "") -> Iterator[tuple[str, str]]:
    if not low <= value <= high:  # NaN is refused too
        yield field, f"is {value}, must be {other}from {low} to {high}"


CLOCK_RATE_ERROR = 0.01
"""Share by which one machine's monotonic clock may run faster or slower than another's. Real ones: less than 0.1 %."""
SILENCE_MARGIN_S = 1.0
"""Added to every wait for an executor's end: the time that killing its work may take, on a machine that has far more to
do than processors. It delays nothing but grants after an executor was lost, and a restart."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds."""

    grace: float = 1.5
    """A client's session outlives its stream by this: enough to reconnect, short enough that a dead client costs
    little."""
    executor_ttl: float = 6.0
    """An executor may run bound work for this long (less 2 %) after sending a heartbeat that was acknowledged."""
    client_return: float = 1.0
    """After another leader nothing is granted for this long: clients, which try to reconnect at least every 0.5 s,
    bring their tickets back, and the order holds. Whoever comes as soon after that still takes its place."""
    holder_return: float = 3.0
    """The same where a bucket gives hold times: a holder that comes later is not counted, so it has time for several
    attempts."""
    tombstone_ttl: float = 60.0
    """The limiter remembers the end of a unary request for this long."""
    max_sessions: int = 10_000
    """Most sessions of each kind, so that clients can't shut executors out."""
    max_tombstones: int = 100_000

    @property
    def executor_silence(self) -> float:
        """After this long without a word, an executor has provably stopped its work, even with a slow clock."""
        return self.executor_ttl * (1 + 2 * CLOCK_RATE_ERROR) + SILENCE_MARGIN_S
