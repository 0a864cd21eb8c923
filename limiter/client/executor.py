"""The executor's session: binds the leases that its requests bring, keeps itself valid, and releases.

Safety rests on three promises of whoever uses it: user code starts only after `bind()` has answered BOUND and while
`valid` is true; when the session lapses or a lease is lost, the work under it is killed; `release()` is called when
that work is dead, and not before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable

from fairbox.clock import Clock, MonotonicClock
from fairbox.security import ClientSecurity
from fairbox.telemetry import tracing
from limiter.client.client import check_wait, process_name
from limiter.client.errors import LeaseRefused, LimiterUnavailable
from limiter.client.grpc_transport import GrpcTransport
from limiter.client.lease import BindOutcome, Lease, LeaseLike, outcome_of
from limiter.client.machine import SessionMachine
from limiter.client.session import SessionRunner
from limiter.client.transport import Transport
from limiter.core.reasons import ReleaseOutcome, SessionKind

_LOG = logging.getLogger("limiter.client")
_BIND_TIMEOUT_S = 5.0


class ExecutorSession:
    """`async with ExecutorSession("127.0.0.1:50052", executor_id="executor-0") as session: ...`

    `executor_id` is the name that operators see, and that a refused bind names as the owner. What is bound must be
    killed when `when_lost` says so, and released once it is dead.
    """

    def __init__(
        self,
        target: str,
        *,
        executor_id: str = "",
        on_renewed: Callable[[float], None] | None = None,
        unavailable_after: float | None = None,
        clock: Clock | None = None,
        transport: Transport | None = None,
        rng: random.Random | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`on_renewed` is given `valid_until` with each frame of the limiter. `unavailable_after`: as with
        `LimiterClient`.

        `security`: TLS and the token, of the role executor; None: those of the environment
        (`fairbox.security.client_security`). ConfigError where they can't be used."""
        self.target = target
        self.executor_id = executor_id or process_name()
        machine = SessionMachine(SessionKind.EXECUTOR, self.executor_id)
        self.session_id = machine.session_id
        self._clock = clock or MonotonicClock()
        self._on_renewed = on_renewed
        self._lost: dict[Lease, list[Callable[[], None]]] = {}
        self._disowned: set[Lease] = set()
        """Held here, but the limiter wants them back or does not know them: their work must end."""
        self._lapsed = True
        self._recheck = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._runner = SessionRunner(
            machine,
            transport or GrpcTransport(target, security),
            self._clock,
            unavailable_after=unavailable_after,
            on_lost=self._on_lost,
            on_frame=self._on_frame,
            rng=rng,
        )

    async def __aenter__(self) -> ExecutorSession:
        self._runner.start()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        await self._runner.close()

    # State

    @property
    def valid_until(self) -> float:
        """Bound work may run until then, on this session's clock: the sending of the last acknowledged heartbeat plus
        the session's ttl, less 2 % for clocks that differ."""
        return self._runner.machine.valid_until

    @property
    def valid(self) -> bool:
        """True if bound work may run now. Check it immediately before user code starts."""
        return self._clock.now() < self._runner.machine.valid_until

    @property
    def connected(self) -> bool:
        """True if the limiter has welcomed the stream that is open now."""
        return self._runner.machine.welcomed

    @property
    def epoch(self) -> int:
        """Epoch of the limiter that answered last; 0 before the first."""
        return self._runner.machine.epoch

    @property
    def held(self) -> tuple[Lease, ...]:
        """Leases that are bound here, or granted to this session."""
        return tuple(self._runner.machine.holdings.held)

    def when_lost(self, lease: LeaseLike, callback: Callable[[], None]) -> None:
        """Calls `callback` once, from the event loop, when the work under a bound lease must end: the session lapsed,
        or the limiter wants the lease back or does not know it. At once when it is not held validly now."""
        if self.vouches(lease):
            self._lost.setdefault(Lease.of(lease), []).append(callback)
        else:
            callback()

    def vouches(self, lease: LeaseLike) -> bool:
        """Says whether work may run under the lease now: it is bound here and not lost, and the session is valid."""
        known = Lease.of(lease)
        return self.valid and bool(self._runner.machine.holdings.held.get(known)) and known not in self._disowned

    # Leases

    async def bind(self, lease: LeaseLike, *, run_id: str = "", timeout: float = _BIND_TIMEOUT_S) -> BindOutcome:
        """Claims a lease for one run. User code may start only when the outcome is `bound`.

        Raises LimiterUnavailable when there is no answer within `timeout` seconds, or the connection is lost; the lease
        is then given back. Raises LeaseRefused when another run of this session uses the lease.
        """
        return await self._runner.bind(Lease.of(lease), run_id, timeout)

    def release(self, lease: LeaseLike, outcome: ReleaseOutcome = ReleaseOutcome.OK) -> None:
        """Frees a lease: what ran under it is dead. Returns at once; the word rides on the next frame, and on the hello
        after a reconnection. Idempotent."""
        known = Lease.of(lease)
        self._lost.pop(known, None)
        self._disowned.discard(known)
        self._runner.release(known, outcome)

    @contextlib.asynccontextmanager
    async def acquire(
        self,
        bucket: str = "code",
        tokens: int = 1,
        *,
        queue_timeout: float = 60.0,
        tenant: str = "",
        run_id: str = "",
        bind_timeout: float = _BIND_TIMEOUT_S,
    ) -> AsyncIterator[Lease]:
        """Waits its turn for work that came without a lease, and yields a lease that is bound already.

        A connection that is lost between the grant and the bind costs the turn and not the work: it waits again.

        Leaving the block releases it, so leave it when the work is dead, with the outcome that what it raised says
        (`outcome_of`); where that is not all, `release()` it before. Raises what `LimiterClient.lease()` raises.
        """
        check_wait(bucket, tokens, queue_timeout)
        with tracing.span("limiter.acquire", bucket=bucket, tenant=tenant, request_id=run_id) as span:
            until = asyncio.get_running_loop().time() + queue_timeout
            while True:
                left = max(0.0, until - asyncio.get_running_loop().time())
                lease = await self._runner.acquire(bucket=bucket, tokens=tokens, queue_timeout=left, tenant=tenant)
                try:
                    outcome = await self.bind(lease, run_id=run_id, timeout=bind_timeout)
                    break
                except LimiterUnavailable:
                    # Safe to repeat: nothing has run under the lease, and the failed bind has given it back.
                    if asyncio.get_running_loop().time() >= until:
                        raise
            span.set_attribute("fairbox.lease", str(lease))
        ended = ReleaseOutcome.UNUSED
        try:
            if not outcome.bound:
                raise LeaseRefused(str(outcome))
            ended = ReleaseOutcome.OK
            yield lease
        except BaseException as error:
            ended = ended if ended is ReleaseOutcome.UNUSED else outcome_of(error)
            raise
        finally:
            self.release(lease, ended)

    # Internal

    def _on_frame(self) -> None:
        if self._on_renewed is not None:
            self._on_renewed(self.valid_until)
        if self.valid and self._lapsed:
            _LOG.info("limiter %s vouches for this executor, in epoch %d", self.target, self.epoch)
            self._lapsed = False
            self._recheck.set()

    def _on_lost(self, lease: Lease, reason: str) -> None:
        _LOG.warning("lease %s is lost: %s", lease, reason)
        self._disowned.add(lease)
        for callback in self._lost.pop(lease, ()):
            _call(callback)

    async def _watch(self) -> None:
        """Notices the lapse when it happens, connected or not."""
        while True:
            self._recheck.clear()
            if self._lapsed:
                await self._recheck.wait()
                continue
            left = self._runner.machine.valid_until - self._clock.now()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self._lapsed = True
            _LOG.warning("limiter %s has not answered in time: what ran under its leases is killed", self.target)
            lost, self._lost = self._lost, {}
            for callbacks in lost.values():
                for callback in callbacks:
                    _call(callback)


def _call(callback: Callable[[], None]) -> None:
    """One failing callback must not keep the others from killing their work."""
    try:
        callback()
    except Exception:
        _LOG.exception("a callback has failed")
