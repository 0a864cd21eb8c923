"""Runs a session machine over a transport: connects, writes, reads, beats, and wakes whoever waits.

Invariants: every wait ends by its deadline or by the word that the limiter can't be reached; a wait that ends without
handing its lease over gives it back; the one task is owned, and awaited by `close()`. It knows no gRPC, so that a
simulated network and clock can run it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable

from fairbox.clock import Clock
from fairbox.telemetry import tracing
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
from limiter.client.session_events import Bound, GoneAway, Lost, News, RequestGranted, RequestRefused, SessionWelcomed
from limiter.client.transport import Connection, ConnectionLost, Transport
from limiter.core.reasons import RejectReason, ReleaseOutcome


class Timer:
    """Rings no later than the last time that it was set to; it may ring before that. Make it inside the running loop,
    and `cancel()` it."""

    __slots__ = ("_event", "_loop", "_rings_at", "_timer")

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._loop = asyncio.get_running_loop()
        self._rings_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def set(self, now: float, deadline: float) -> None:
        """Rings at `deadline`, both by the same clock in seconds. One that is set to ring earlier is left alone: when
        it does, whoever hears it looks what is due, and sets it again."""
        if deadline >= self._rings_at:
            return
        self.cancel()
        self._rings_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._ring)

    def cancel(self) -> None:
        """It does not ring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, float("inf")

    def _ring(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        self._event.set()


_LOG = logging.getLogger("limiter.client")
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 0.5
"""Below `Timing.client_return`: a restarted limiter waits that long for those who queued."""
_WELCOME_WITHIN_S = 5.0
"""A limiter that does not answer a hello for so long is not there."""
_READ_WITHIN_S = 15.0
"""One that has answered the heartbeat of a hello, and reads those of others first, has so long for the welcome."""
_NEVER_THERE_S = 10.0
"""A limiter that was not reached by then may be none at all."""
_FLUSH_WITHIN_S = 1.0
"""Seconds that `close()` gives the last frame to leave."""
_QUEUE_BACKSTOP_S = 10.0
"""The limiter answers a queue timeout itself; this much later it is taken for gone."""


class SessionRunner:
    """One session of this process and loop. `start()` it inside the loop, `close()` it there."""

    def __init__(
        self,
        machine: SessionMachine,
        transport: Transport,
        clock: Clock,
        *,
        unavailable_after: float | None,
        on_lost: Callable[[Lease, str], None] | None = None,
        on_frame: Callable[[], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.machine = machine
        self.clock = clock
        self._transport = transport
        self._unavailable_after = unavailable_after
        self._on_lost = on_lost
        self._on_frame = on_frame
        self._rng = rng or random.Random()  # noqa: S311 - spreads reconnections, hides nothing
        self._requests: dict[str, asyncio.Future[Lease]] = {}
        self._binds: dict[Lease, asyncio.Future[BindOutcome]] = {}
        self._dirty = asyncio.Event()
        self._open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closing = asyncio.Event()
        self._down_since = float("inf")
        self._reached = False
        self._trouble = "it has not answered yet"
        self._gone_away = ""
        self._retry_after = 0.0

    def start(self) -> None:
        """Begins to connect."""
        if self._task is not None or self._closing.is_set():
            raise RuntimeError("a session can be started only once")
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._down_since = self.clock.now()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Gives back what is waited for and what was granted and not bound, and ends the session. Leases with a hold
        time stay: work may run under them. Idempotent."""
        self._closing.set()
        task, self._task = self._task, None
        for request_id in list(self._requests):
            self.machine.abandon(request_id)
        for lease in self.machine.idle():
            self.machine.release(lease, ReleaseOutcome.UNUSED)
        self._fail_all("this client was closed")
        self._dirty.set()
        if task is not None:
            if self.machine.welcomed:
                await asyncio.wait([task], timeout=_FLUSH_WITHIN_S)
            task.cancel()
            await asyncio.wait([task])
        await self._transport.close()

    async def acquire(
        self,
        *,
        bucket: str,
        tokens: int,
        queue_timeout: float,
        tenant: str = "",
        request_id: str = "",
        hold: float = 0.0,
        instead_of: Lease | None = None,
    ) -> Lease:
        """Waits for a lease. Raises a LimiterError; a cancelled or failed wait leaves nothing behind."""
        self._check_usable()
        request_id = self.machine.acquire(
            self.clock.now(),
            bucket=bucket,
            tokens=tokens,
            queue_timeout=queue_timeout,
            tenant=tenant,
            request_id=request_id,
            hold=hold,
            instead_of=instead_of,
        )
        if tracing.enabled():
            self.machine.trace(request_id, tracing.traceparent())
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Lease] = loop.create_future()
        self._requests[request_id] = future
        self._dirty.set()
        # A plain timer: asyncio.timeout() costs more than everything else that is done here for one lease.
        backstop = loop.call_later(queue_timeout + _QUEUE_BACKSTOP_S, self._overdue, request_id, future)
        delivered = False
        try:
            lease = await future
            delivered = True
            return lease
        finally:
            backstop.cancel()
            if self._requests.get(request_id) is future:
                del self._requests[request_id]
            if not delivered:
                self._withdraw(request_id, future)

    def release(self, lease: Lease, outcome: ReleaseOutcome) -> None:
        """Gives a lease back; the word rides on the next frame."""
        self.machine.release(lease, outcome)
        self._dirty.set()

    async def bind(self, lease: Lease, run_id: str, timeout: float) -> BindOutcome:
        """Claims a lease. LimiterUnavailable when there is no answer in time; then the lease is given back."""
        self._check_usable()
        if lease in self._binds or self.machine.held.get(lease):
            raise LeaseRefused(f"lease {lease} is in use by another run of this executor")
        future: asyncio.Future[BindOutcome] = asyncio.get_running_loop().create_future()
        self._binds[lease] = future
        answered = False
        try:
            async with asyncio.timeout(timeout):
                while not (self.machine.welcomed or future.done()):
                    await self._open.wait()
                if not future.done():
                    self.machine.bind(lease, run_id)
                    self._dirty.set()
                outcome = await future
            answered = True
            return outcome
        except TimeoutError:
            why = self._trouble if not self.machine.welcomed else "it did not answer"
            raise LimiterUnavailable(f"limiter {self._transport.target}: no bind in {timeout:.1f} s: {why}") from None
        finally:
            self._binds.pop(lease, None)
            if not answered:
                self.release(lease, ReleaseOutcome.UNUSED)
            if future.done() and not future.cancelled():
                future.exception()  # nobody else may have looked at it

    def _overdue(self, request_id: str, future: asyncio.Future[Lease]) -> None:
        """The limiter should have answered the queue timeout long ago."""
        if not future.done():
            self.machine.abandon(request_id)
            self._dirty.set()
            future.set_exception(LimiterUnavailable(f"limiter {self._transport.target} did not answer in time"))

    def _withdraw(self, request_id: str, future: asyncio.Future[Lease]) -> None:
        """Leaves nothing behind of a wait that ended without handing its lease over."""
        if not future.done() or future.cancelled():
            self.machine.abandon(request_id)
        elif future.exception() is None:
            self.machine.release(future.result(), ReleaseOutcome.UNUSED)
        self._dirty.set()

    # The task

    async def _run(self) -> None:
        backoff = _BACKOFF_FIRST_S
        while not self._closing.is_set():
            self._gone_away, self._retry_after = "", 0.0
            go_on = False
            try:
                connection = await self._transport.connect()
                try:
                    await self._converse(connection)
                finally:
                    await connection.close()
            except ConnectionLost as error:
                self._trouble, go_on = self._gone_away or str(error), error.go_on
            self._open.clear()
            if self.machine.welcomed:
                backoff, self._down_since = _BACKOFF_FIRST_S, self.clock.now()
            for lease in self.machine.disconnected():
                if (future := self._binds.get(lease)) is not None and not future.done():
                    message = f"limiter {self._transport.target}: the connection was lost: {self._trouble}"
                    future.set_exception(LimiterUnavailable(message))
            if self.clock.now() - self._down_since >= self._patience():
                self._fail_all(self._trouble)
            if self._closing.is_set():
                return
            # Safe to repeat: a hello says what is held and waited for, and changes nothing else.
            if go_on:
                continue
            await asyncio.sleep(max(self._retry_after, backoff) * self._rng.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _BACKOFF_LAST_S)

    def _patience(self) -> float:
        """Seconds without the limiter after which waits end before their queue timeouts."""
        if self._unavailable_after is not None:
            return self._unavailable_after
        return float("inf") if self._reached else _NEVER_THERE_S

    async def _converse(self, connection: Connection) -> None:
        """Uses one connection until it is lost."""
        self.machine.connected(self.clock.now())
        self._dirty.set()
        writer = asyncio.create_task(self._write(connection))
        try:
            async with asyncio.timeout(_WELCOME_WITHIN_S) as patience:
                while not self.machine.welcomed:
                    self._handle(self.machine.received(await connection.receive(), self.clock.now()))
                    patience.reschedule(asyncio.get_running_loop().time() + _READ_WITHIN_S)
            while True:
                frame = await connection.receive()
                self._handle(self.machine.received(frame, self.clock.now()))
        except TimeoutError:
            raise ConnectionLost("no welcome in time") from None
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            error = None if writer.cancelled() else writer.exception()
            if error is not None and not isinstance(error, ConnectionLost):
                raise error

    async def _write(self, connection: Connection) -> None:
        """Writes what the machine has to say. While one frame is on its way, everything else is collected."""
        machine, dirty = self.machine, self._dirty
        alarm = Timer(dirty)
        try:
            while True:
                now = self.clock.now()
                if machine.stalled(now):
                    raise ConnectionLost("heartbeats are not acknowledged")
                frame = machine.take_frame(now)
                if frame is not None:
                    await connection.send(frame)
                    continue
                if self._closing.is_set():
                    if (last := machine.last_frame()) is not None:
                        await connection.send(last)
                    await connection.finish()
                    return
                dirty.clear()
                deadline = machine.next_deadline()
                if deadline is not None:
                    alarm.set(now, deadline)
                await dirty.wait()
        except ConnectionLost:
            await connection.close()  # so that the reader notices
            raise
        finally:
            alarm.cancel()

    def _handle(self, news: list[News]) -> None:
        for item in news:
            if isinstance(item, RequestGranted):
                future = self._requests.pop(item.request_id, None)
                if future is None or future.done():
                    self.release(item.lease, ReleaseOutcome.UNUSED)
                else:
                    future.set_result(item.lease)
            elif isinstance(item, RequestRefused):
                future = self._requests.pop(item.request_id, None)
                if future is not None and not future.done():
                    future.set_exception(_error(item))
            elif isinstance(item, Bound):
                waiter = self._binds.get(item.outcome.lease)
                if waiter is not None and not waiter.done():
                    waiter.set_result(item.outcome)
            elif isinstance(item, Lost):
                if self._on_lost is not None:
                    self._on_lost(item.lease, item.reason)
            elif isinstance(item, SessionWelcomed):
                self._down_since, self._reached = float("inf"), True
                self._open.set()
            elif isinstance(item, GoneAway):
                self._gone_away, self._retry_after = item.reason, item.retry_after
        if self._on_frame is not None:
            self._on_frame()
        self._dirty.set()

    # Ends

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self._closing.is_set():
            _LOG.error("the session with limiter %s has ended by itself: %r", self._transport.target, error)
        self._fail_all("this client was closed" if error is None else f"its session has failed: {error!r}")

    def _fail_all(self, why: str) -> None:
        message = f"limiter {self._transport.target} is not available: {why}"
        futures: list[asyncio.Future[Lease] | asyncio.Future[BindOutcome]] = []
        futures += self._requests.values()
        futures += self._binds.values()
        for request_id in list(self._requests):
            self.machine.abandon(request_id)
        for future in futures:
            if not future.done():
                future.set_exception(LimiterUnavailable(message))
        if not self.machine.welcomed:  # binds that wait for a connection look again
            self._open.set()
            self._open.clear()

    def _check_usable(self) -> None:
        if self._loop is not asyncio.get_running_loop() or self._pid != os.getpid():
            raise RuntimeError("a limiter's client belongs to the event loop and the process that entered it")
        if self._task is None or self._task.done():
            raise LimiterUnavailable(f"limiter {self._transport.target}: this client is not open")


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
