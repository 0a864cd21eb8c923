"""Seam between the executor and the cluster-wide limit, and the implementation that has no limit.

Invariants of every implementation: a program starts only under a confirmed claim that is still valid; a claim is given
back when its block is left, which is after everything of its run is dead, and not before; every wait is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from executor_service.errors import ExecutorUnavailable, Overloaded
from executor_service.v1 import executor_pb2 as pb
from limiter import Lease


class LimiterDown(ExecutorUnavailable):
    """The limiter can't be reached, or this server's session with it has lapsed."""


class LeaseQueueFull(Overloaded):
    """The limiter takes no more requests into its queue."""

    subject = "limiter:queue"


class Claim(Protocol):
    """One token for one run."""

    failed: bool
    """Set where what ran under it ended by no fault of the program: no good end, for an adaptive limit."""

    @property
    def waits(self) -> bool:
        """True if the limiter must still answer before it is `confirmed()`."""
        ...

    async def confirmed(self) -> None:
        """Returns when the limiter has bound it. Raises LeaseRefused, whose text names the reason and the owner,
        RunLost if it is bound to an earlier life of this server, or LimiterDown."""
        ...

    def check(self) -> None:
        """Raises LimiterDown unless the limiter still vouches for it at this instant."""
        ...

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the limiter no longer vouches for it, or wants it back."""
        ...


class LeaseGate(Protocol):
    @property
    def needs_queue(self) -> bool:
        """True if a run that brings no lease has to wait for one."""
        ...

    def claim(self, lease: Lease | None, *, run_id: str, tenant: str) -> AbstractAsyncContextManager[Claim]:
        """Begins to bind `lease`, or waits for a new one. Entering may wait in the limiter's queue only for a new one;
        raises LimiterDown or LeaseQueueFull."""
        ...

    def status(self) -> pb.LimiterStatus:
        """The server's standing with its limiter at this instant."""
        ...


class _Free:
    failed = waits = False

    async def __aenter__(self) -> _Free:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def confirmed(self) -> None:
        return

    def check(self) -> None:
        return

    def when_lost(self, callback: Callable[[], None]) -> None:
        return


class NoLimiter:
    """No cluster-wide limit, by explicit configuration. A lease that a request brings is not looked at."""

    needs_queue = False

    def claim(self, lease: Lease | None, *, run_id: str, tenant: str) -> AbstractAsyncContextManager[Claim]:
        return _Free()

    def status(self) -> pb.LimiterStatus:
        return pb.LimiterStatus(target="none", valid=True)
