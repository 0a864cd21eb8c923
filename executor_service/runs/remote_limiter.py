"""The cluster-wide limit, kept with the limiter: binds the leases of requests, acquires for those that bring none.

A lease of a request is bound while the request waits and while its sandbox is set up; `confirmed()` is where the two
meet. A lease is released when its block is left: everything that ran under it is dead by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from executor_service import errors
from executor_service.runs.leases import Claim, LeaseQueueFull, LimiterDown
from executor_service.v1 import executor_pb2 as pb
from limiter import (
    BindOutcome,
    BindStatus,
    ExecutorSession,
    Lease,
    LeaseRefused,
    LimiterUnavailable,
    QueueFull,
    QueueTimeout,
    ReleaseOutcome,
    UnknownBucket,
    outcome_of,
)

_AFTER_TIMEOUT_S = 30.0
"""Advice to one who has waited in vain for as long as this server lets anybody wait."""


class RemoteLimiter:
    """`session` must be open for as long as this is used."""

    needs_queue = True

    def __init__(self, session: ExecutorSession, *, bucket: str, bind_timeout_s: float, queue_timeout_s: float) -> None:
        self._session = session
        self._bucket = bucket
        self._bind_timeout_s = bind_timeout_s
        self._queue_timeout_s = queue_timeout_s

    def claim(self, lease: Lease | None, *, run_id: str, tenant: str) -> AbstractAsyncContextManager[Claim]:
        return self._acquired(run_id, tenant) if lease is None else self._bound(lease, run_id)

    def status(self) -> pb.LimiterStatus:
        session = self._session
        held = len(session.held)
        return pb.LimiterStatus(target=session.target, valid=session.valid, epoch=session.epoch, bound=held)

    @asynccontextmanager
    async def _acquired(self, run_id: str, tenant: str) -> AsyncIterator[Claim]:
        async with AsyncExitStack() as stack:
            acquire = self._session.acquire(
                self._bucket,
                queue_timeout=self._queue_timeout_s,
                tenant=tenant,
                run_id=run_id,
                bind_timeout=self._bind_timeout_s,
            )
            try:
                lease = await stack.enter_async_context(acquire)
            except QueueFull as error:
                raise LeaseQueueFull(str(error), error.retry_after) from None
            except QueueTimeout as error:
                raise LeaseQueueFull(str(error), _AFTER_TIMEOUT_S) from None
            except LimiterUnavailable as error:
                raise LimiterDown(str(error)) from None
            except (LeaseRefused, UnknownBucket) as error:
                raise errors.LeaseRefused(str(error)) from None
            claim = _Claim(self._session, lease, None)
            try:
                yield claim
            except BaseException as error:
                self._session.release(lease, _outcome(claim, error))
                raise
            self._session.release(lease, _outcome(claim, None))

    @asynccontextmanager
    async def _bound(self, lease: Lease, run_id: str) -> AsyncIterator[Claim]:
        binding = asyncio.create_task(
            self._session.bind(lease, run_id=run_id, timeout=self._bind_timeout_s), name=f"bind {lease}"
        )
        claim = _Claim(self._session, lease, binding)
        raised: BaseException | None = None
        try:
            yield claim
        except BaseException as error:
            raised = error
            raise
        finally:
            # A bind that is cancelled or fails gives the lease back itself.
            binding.cancel()
            try:
                await asyncio.wait([binding])
            finally:
                if not binding.cancelled() and binding.exception() is None and binding.result().bound:
                    self._session.release(lease, _outcome(claim, raised))


def _outcome(claim: _Claim, error: BaseException | None) -> ReleaseOutcome:
    """Outcome of the run of a claim whose block ended with `error`; None: with no error."""
    ended = outcome_of(error)
    if ended in (ReleaseOutcome.OVERLOADED, ReleaseOutcome.TIMEOUT):
        return ended
    if not claim.checked:
        return ReleaseOutcome.UNUSED
    return ReleaseOutcome.ERROR if claim.failed else ended


class _Claim:
    """One token for one run. `binding` is None when the lease is bound already."""

    def __init__(self, session: ExecutorSession, lease: Lease, binding: asyncio.Task[BindOutcome] | None) -> None:
        self._session = session
        self._lease = lease
        self._binding = binding
        self.failed = False
        self.checked = False
        """True if it was found valid, so that a program may have run under it."""

    @property
    def waits(self) -> bool:
        return self._binding is not None and not self._binding.done()

    async def confirmed(self) -> None:
        if self._binding is None:
            return
        try:
            outcome = await self._binding
        except LimiterUnavailable as error:
            raise LimiterDown(str(error)) from None
        except LeaseRefused as error:
            raise errors.LeaseRefused(str(error)) from None
        if outcome.bound:
            return
        if outcome.status is BindStatus.BOUND_ELSEWHERE and outcome.owner == self._session.executor_id:
            raise errors.RunLost(f"{outcome}, in an earlier life: what ran under it is lost")
        raise errors.LeaseRefused(str(outcome))

    def check(self) -> None:
        if not self._session.vouches(self._lease):
            raise LimiterDown(f"the limiter on {self._session.target} does not vouch for lease {self._lease} any more")
        self.checked = True

    def when_lost(self, callback: Callable[[], None]) -> None:
        self._session.when_lost(self._lease, callback)
