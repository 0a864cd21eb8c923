"""Which repositories are worked on now, which are tried again and when: pure, time is an argument.

Invariants: at most `parallel` run; they start in their order, those that are tried again behind the others; none is
tried more than `attempts` times; every one ends as done or as failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FetchStatistics", "FetchTable"]

BACKOFF_S = 2.0
"""Before the second attempt; doubled for each further one."""
_MOST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """Repositories by state; `attempts` counts starts."""

    waiting: int
    running: int
    done: int
    failed: int
    attempts: int


class FetchTable:
    """`start` says what to begin, `ended` is told what became of it, until `finished`."""

    def __init__(self, names: Sequence[str], *, parallel: int, attempts: int) -> None:
        assert len(set(names)) == len(names)
        assert parallel >= 1
        assert attempts >= 1
        self._fresh = deque(names)
        self._again: list[tuple[float, str]] = []
        """(when, name), sorted."""
        self._running: dict[str, int] = {}
        """Name -> number of its attempt."""
        self._tried: dict[str, int] = {}
        self._parallel = parallel
        self._attempts = attempts
        self._done = self._failed = 0

    @property
    def finished(self) -> bool:
        return not (self._fresh or self._again or self._running)

    def start(self, now: float) -> list[str]:
        """What begins now."""
        begun = []
        while len(self._running) < self._parallel:
            if self._fresh:
                name = self._fresh.popleft()
            elif self._again and self._again[0][0] <= now:
                name = self._again.pop(0)[1]
            else:
                break
            self._tried[name] = self._running[name] = self._tried.get(name, 0) + 1
            begun.append(name)
        return begun

    def ended(self, name: str, now: float, *, failed: bool, may_pass: bool = False) -> bool:
        """Whether it will be tried again, which is safe: what an attempt has fetched, the next one finds."""
        attempt = self._running.pop(name)
        if failed and may_pass and attempt < self._attempts:
            self._again.append((now + min(_MOST_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1)), name))
            self._again.sort()
            return True
        self._done += not failed
        self._failed += failed
        return False

    def wait_s(self, now: float) -> float | None:
        """Seconds until something may start by itself; None: only when something ends."""
        if self._fresh or not self._again or len(self._running) >= self._parallel:
            return None
        return max(0.0, self._again[0][0] - now)

    def statistics(self) -> FetchStatistics:
        waiting = len(self._fresh) + len(self._again)
        return FetchStatistics(waiting, len(self._running), self._done, self._failed, sum(self._tried.values()))
