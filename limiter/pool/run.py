"""One run of a pool: what was asked for, and how far it has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from limiter.pool.counters import Counters
from limiter.pool.errors import RunTimeout

__all__ = ["Run"]


def _future() -> asyncio.Future[RunTimeout]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Run:
    """A record: the pool alone changes it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    message: bytes
    """The three, pickled, for a process."""
    tokens: int
    timeout: float | None
    deadline: float
    """When worker and lease must be there, on the loop's clock."""
    started: bool = False
    """Whether a process may run it."""
    unstoppable: bool = False
    """Whether a thread may run it: then the lease stays held until it ends, whatever becomes of the caller."""
    given_up: asyncio.Future[RunTimeout] = field(default_factory=_future)
    """Done when the caller need not wait for the thread any more."""

    def timed_out(self, counters: Counters) -> RunTimeout:
        """Counts it, and says so."""
        counters.timed_out_total += 1
        return RunTimeout(f"the function ran for longer than {self.timeout} s")

    def give_up(self, counters: Counters) -> None:
        """The thread's time is over."""
        if not self.given_up.done():
            self.given_up.set_result(self.timed_out(counters))

    def count_cancelled(self, counters: Counters) -> None:
        """The caller was cancelled."""
        counters.cancelled_total += self.started or self.unstoppable
