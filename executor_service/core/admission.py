"""Who runs now and who waits: a fixed number of slots, a bounded queue, first in first out. Pure.

A request enters when it arrives. It may start once it is eligible (a request without a lease is not, until the limiter
has granted it one); among the eligible, whoever entered first starts first. Slots are numbered, and a number is never
given to two requests at once. Whoever leaves, for whatever reason, is gone from every count.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["Admission", "AdmissionStatistics", "QueueFull", "Started"]

_RECENT = 0.1
"""Weight of the newest duration in the running mean that the advice on retrying is made of."""
_ADVICE_RANGE_S = (0.05, 30.0)


class QueueFull(Exception):  # noqa: N818 - a decision
    """No more requests are taken. `retry_after_s` is an estimate."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(f"{limit} requests wait already (max_queued)")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Started:
    """A request that may run now, in a slot."""

    key: Hashable
    slot: int


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Counts at one instant."""

    max_running: int
    running: int
    max_queued: int
    queued: int
    oldest_wait_s: float


@dataclass(slots=True)
class _Waiting:
    entered_at: float
    eligible: bool


class Admission:
    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._free = list(range(max_running - 1, -1, -1))
        self._waiting: dict[Hashable, _Waiting] = {}
        self._running: dict[Hashable, tuple[int, float]] = {}
        self._mean_s = 1.0

    @property
    def has_room(self) -> bool:
        """Whether whoever becomes eligible now starts at once: among those who may start nobody waits then."""
        return bool(self._free)

    def enter(self, key: Hashable, now: float, *, eligible: bool) -> list[Started]:
        """Takes a request in. Raises QueueFull. Returns whoever starts, which may be `key`."""
        starts_now = eligible and self._free and not self._next_eligible()
        if not starts_now and len(self._waiting) >= self._max_queued:
            low, high = _ADVICE_RANGE_S
            advice = self._mean_s * (len(self._waiting) + 1) / self._max_running
            raise QueueFull(self._max_queued, min(max(advice, low), high))
        assert key not in self._waiting
        assert key not in self._running
        self._waiting[key] = _Waiting(now, eligible)
        return self._start(now)

    def eligible(self, key: Hashable, now: float) -> list[Started]:
        """`key` may start from now on. Without effect when it has left."""
        if key in self._waiting:
            self._waiting[key].eligible = True
        return self._start(now)

    def leave(self, key: Hashable, now: float) -> list[Started]:
        """`key` has ended or gave up. Idempotent. Returns whoever starts in its place."""
        self._waiting.pop(key, None)
        if key in self._running:
            slot, started_at = self._running.pop(key)
            self._free.append(slot)
            self._mean_s += _RECENT * (now - started_at - self._mean_s)
        return self._start(now)

    def statistics(self, now: float) -> AdmissionStatistics:
        oldest = next(iter(self._waiting.values()), None)
        return AdmissionStatistics(
            max_running=self._max_running,
            running=len(self._running),
            max_queued=self._max_queued,
            queued=len(self._waiting),
            oldest_wait_s=now - oldest.entered_at if oldest else 0.0,
        )

    def _start(self, now: float) -> list[Started]:
        started = []
        while self._free and (key := self._next_eligible()) is not None:
            del self._waiting[key]
            slot = self._free.pop()
            self._running[key] = (slot, now)
            started.append(Started(key, slot))
        return started

    def _next_eligible(self) -> Hashable | None:
        return next((key for key, waiting in self._waiting.items() if waiting.eligible), None)
