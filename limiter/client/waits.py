"""Waits of a session for leases and for answers to binds, as futures.

Invariants: a future is resolved once; a wait that ends without a lease leaves nothing behind in the machine; a lease
that nobody waits for is the caller's to give back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from limiter.client.errors import (
    LeaseRefused,
    LimiterError,
    LimiterUnavailable,
    QueueFull,
    QueueTimeout,
    UnknownBucket,
)
from limiter.client.lease import BindOutcome, Lease
from limiter.client.machine import SessionMachine
from limiter.client.session_events import RequestRefused
from limiter.core.reasons import RejectReason, ReleaseOutcome


class Waits:
    """Futures by request id, and by lease that is being bound. `wake`: the machine has something to say."""

    def __init__(self, machine: SessionMachine, target: str, wake: Callable[[], None]) -> None:
        self._machine = machine
        self._target = target
        self._wake = wake
        self.requests: dict[str, asyncio.Future[Lease]] = {}
        self.binds: dict[Lease, asyncio.Future[BindOutcome]] = {}

    def granted(self, request_id: str, lease: Lease) -> bool:
        """Hands a lease over. False: nobody waits for it any more."""
        future = self.requests.pop(request_id, None)
        if future is None or future.done():
            return False
        future.set_result(lease)
        return True

    def refused(self, news: RequestRefused) -> None:
        """Raises the reason in the wait for a lease."""
        future = self.requests.pop(news.request_id, None)
        if future is not None and not future.done():
            future.set_exception(_error(news))

    def bound(self, outcome: BindOutcome) -> None:
        """Hands over the answer to a bind."""
        waiter = self.binds.get(outcome.lease)
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)

    def unanswered(self, lease: Lease, trouble: str) -> None:
        """Raises LimiterUnavailable in a bind that is not answered any more."""
        if (future := self.binds.get(lease)) is not None and not future.done():
            message = f"limiter {self._target}: the connection was lost: {trouble}"
            future.set_exception(LimiterUnavailable(message))

    def overdue(self, request_id: str, future: asyncio.Future[Lease]) -> None:
        """Gives up a wait for a lease: the limiter should have answered the queue timeout long ago."""
        if not future.done():
            self._machine.abandon(request_id)
            self._wake()
            future.set_exception(LimiterUnavailable(f"limiter {self._target} did not answer in time"))

    def withdraw(self, request_id: str, future: asyncio.Future[Lease]) -> None:
        """Leaves nothing behind of a wait that ended without handing its lease over."""
        if not future.done() or future.cancelled():
            self._machine.abandon(request_id)
        elif future.exception() is None:
            self._machine.release(future.result(), ReleaseOutcome.UNUSED)
        self._wake()

    def fail_all(self, why: str) -> None:
        """Raises LimiterUnavailable in every wait."""
        message = f"limiter {self._target} is not available: {why}"
        futures: list[asyncio.Future[Lease] | asyncio.Future[BindOutcome]] = [*self.requests.values()]
        futures += self.binds.values()
        for request_id in list(self.requests):
            self._machine.abandon(request_id)
        for future in futures:
            if not future.done():
                future.set_exception(LimiterUnavailable(message))


def _error(refused: RequestRefused) -> LimiterError:
    if refused.reason is RejectReason.QUEUE_FULL:
        return QueueFull(refused.message, refused.retry_after)
    if refused.reason is RejectReason.QUEUE_TIMEOUT:
        return QueueTimeout(refused.message)
    if refused.reason is RejectReason.UNKNOWN_BUCKET:
        return UnknownBucket(refused.message)
    if refused.reason is RejectReason.INVALID:
        return LeaseRefused(refused.message)
    return LimiterUnavailable(refused.message)
