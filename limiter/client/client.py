"""The client that asks for leases: one stream per process and event loop, whatever number of tasks wait."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from fairbox.security import ClientSecurity
from fairbox.telemetry import tracing
from limiter.client.grpc_transport import GrpcTransport
from limiter.client.lease import Lease, LeaseLike, outcome_of
from limiter.client.machine import SessionMachine
from limiter.client.session import SessionRunner
from limiter.client.transport import Transport
from limiter.core.limits import MAX_TIME_S, MAX_TOKENS
from limiter.core.reasons import ReleaseOutcome, SessionKind


class LimiterClient:
    """`async with LimiterClient("127.0.0.1:50052") as limiter: async with limiter.lease() as lease: ...`

    Make one per process and event loop, after any fork, and share it between tasks; it reconnects by itself. Leases
    that are waited for keep their place in the queue over a reconnection.
    """

    def __init__(
        self,
        target: str,
        *,
        name: str = "",
        unavailable_after: float | None = None,
        clock: Clock | None = None,
        transport: Transport | None = None,
        rng: random.Random | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`name` is what operators see. Waits end with LimiterUnavailable once the limiter has not been reachable for
        `unavailable_after` seconds. None: 10 where it was never reached, and otherwise a wait lasts as long as its
        queue timeout, because the limiter may come back. `rng` spreads reconnections. `security`: TLS and the token;
        None: those of the environment (`fairbox.security.client_security`). ConfigError where they can't be used."""
        machine = SessionMachine(SessionKind.CLIENT, name or process_name())
        self.session_id = machine.session_id
        self._runner = SessionRunner(
            machine,
            transport or GrpcTransport(target, security),
            clock or MonotonicClock(),
            unavailable_after=unavailable_after,
            rng=rng,
        )
        self._kept: set[Lease] = set()
        """Leases whose blocks are not left yet, and which leaving them does not give back."""

    async def __aenter__(self) -> LimiterClient:
        self._runner.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.close()

    def lease(
        self,
        bucket: str = "code",
        tokens: int = 1,
        *,
        queue_timeout: float = 60.0,
        tenant: str = "",
        hold: float = 0.0,
        instead_of: LeaseLike | None = None,
    ) -> LeaseContext:
        """Waits its turn, first in, first out, and yields a Lease. `queue_timeout` is in seconds, at most 86,400.

        An executor binds the lease when it runs the work, within the bucket's `start_by`; then only the executor frees
        it. With `hold`, in seconds, nobody has to: that is for work where no executor can bind, such as a sandbox
        behind HTTP. The lease then ends when the block is left, or after that time, whatever becomes of this client;
        the limit holds if the work ends by then too. Leaving the block gives back a lease that was not bound, and tells
        an adaptive limit what the block raised (`outcome_of`): a 429 of a sandbox lowers it.

        `instead_of` is a lease that this client was granted and that no executor could bind any more. If that is
        because the limiter was restarted, the request has the place that the lease had, before all that have waited
        since; otherwise it goes to the end of the queue, as any other.

        Raises QueueTimeout, QueueFull, UnknownBucket, LeaseRefused or LimiterUnavailable on entering; FieldErrors at
        once for a bad argument.
        """
        check_wait(bucket, tokens, queue_timeout, hold)
        acquire = partial(
            self._runner.acquire,
            bucket=bucket,
            tokens=tokens,
            queue_timeout=queue_timeout,
            tenant=tenant,
            hold=hold,
            instead_of=None if instead_of is None else Lease.of(instead_of),
        )
        if tracing.enabled():
            acquire = partial(_traced, acquire, bucket=bucket, tenant=tenant)
        return LeaseContext(self._runner, acquire, self._kept)

    def keep(self, lease: LeaseLike) -> None:
        """Leaves a lease to its hold time: leaving its block does not give it back. For work that may go on although
        nobody waits for its end any more, as in a sandbox behind HTTP whose caller has gone. Without a hold time the
        lease ends as if nobody had bound it. Call it inside the block."""
        known = Lease.of(lease)
        if known in self._runner.machine.holdings.held:
            self._kept.add(known)

    def release(self, lease: LeaseLike, outcome: ReleaseOutcome = ReleaseOutcome.OK) -> None:
        """Gives a lease back before its block is left, and says how the work under it ended: an adaptive limit goes by
        that. Returns at once; idempotent. A bound lease is its executor's to release, and is left alone."""
        known = Lease.of(lease)
        if known in self._runner.machine.holdings.held:
            self._runner.release(known, outcome)

    @property
    def connected(self) -> bool:
        """True if the limiter has welcomed the stream that is open now."""
        return self._runner.machine.welcomed

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._runner.machine.waiting)

    @property
    def held(self) -> tuple[Lease, ...]:
        """Leases whose blocks are entered, or about to be."""
        return tuple(self._runner.machine.holdings.held)


class LeaseContext:
    """Context manager that `LimiterClient.lease()` returns: enter it once."""

    __slots__ = ("_acquire", "_kept", "_lease", "_runner")

    def __init__(self, runner: SessionRunner, acquire: Callable[[], Awaitable[Lease]], kept: set[Lease]) -> None:
        self._runner = runner
        self._acquire = acquire
        self._kept = kept
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        self._lease = await self._acquire()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        if lease in self._kept:
            self._kept.discard(lease)
        elif lease is not None:
            self._runner.release(lease, outcome_of(error))


async def _traced(acquire: Callable[[], Awaitable[Lease]], **facts: str) -> Lease:
    with tracing.span("limiter.acquire", **facts) as span:
        lease = await acquire()
        span.set_attribute("fairbox.lease", str(lease))
        return lease


def check_wait(bucket: str, tokens: int, queue_timeout: float, hold: float = 0.0) -> None:
    """Raises FieldErrors unless the arguments can be sent."""
    errors = []
    if not bucket:
        errors.append(FieldError("bucket", "is empty, must be the name of a bucket"))
    if not 1 <= tokens <= MAX_TOKENS:
        errors.append(FieldError("tokens", f"is {tokens}, must be from 1 to {MAX_TOKENS}"))
    if not 0 < queue_timeout <= MAX_TIME_S:
        problem = f"is {queue_timeout}, must be above 0 and at most {MAX_TIME_S:.0f} seconds"
        errors.append(FieldError("queue_timeout", problem))
    if not 0 <= hold <= MAX_TIME_S:
        errors.append(FieldError("hold", f"is {hold}, must be from 0 to {MAX_TIME_S:.0f} seconds"))
    if errors:
        raise FieldErrors(errors)


def process_name() -> str:
    """Host and process id, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
