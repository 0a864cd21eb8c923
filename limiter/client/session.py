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
from limiter.client.session_events import GoneAway, Lost, News, RequestGranted, RequestRefused
from limiter.client.transport import Connection, ConnectionLost, Transport
from limiter.core.reasons import RejectReason, ReleaseOutcome
from limiter.timer import Timer

_LOG = logging.getLogger("limiter.client")
_WELCOME_WITHIN_S = 5.0
"""A limiter that does not answer a hello for so long is not there."""
_READ_WITHIN_S = 15.0
"""One that has answered the heartbeat of a hello, and reads those of others first, has so long for the welcome."""
_FLUSH_WITHIN_S = 1.0
"""Seconds that `close()` gives the last frame to leave."""
_QUEUE_BACKSTOP_S = 10.0
"""The limiter answers a queue timeout itself; this much later it is taken for gone."""


_NEVER = float("inf")
_BACKOFF_FIRST_S = 0.05
_BACKOFF_LAST_S = 0.5
"""Below `Timing.client_return`: a restarted limiter waits that long for those who queued."""
_NEVER_THERE_S = 10.0
"""A limiter that was not reached by then may be none at all."""


class Reconnection:
    """One session's attempts to connect, as a pure state machine. `unavailable_after`: seconds without the limiter
    after which waits fail; None: their queue timeouts decide, once the limiter was reached."""

    def __init__(self, unavailable_after: float | None, rng: random.Random) -> None:
        self.trouble = "it has not answered yet"
        """The reason why there is no connection."""
        self._unavailable_after = unavailable_after
        self._rng = rng
        self._backoff = _BACKOFF_FIRST_S
        self._down_since = _NEVER
        self._reached = False
        self._gone_away = ""
        self._retry_after = 0.0

    def start(self, now: float) -> None:
        """The first attempt is to be made."""
        self._down_since = now

    def attempt(self) -> None:
        """An attempt begins."""
        self._gone_away, self._retry_after = "", 0.0

    def welcomed(self) -> None:
        """The limiter has answered."""
        self._down_since, self._reached = _NEVER, True

    def sent_away(self, reason: str, retry_after: float) -> None:
        """The limiter says that it ends the connection, and when to come back."""
        self._gone_away, self._retry_after = reason, retry_after

    def failed(self, reason: str) -> None:
        """The connection was lost, or not made."""
        self.trouble = self._gone_away or reason

    def ended(self, now: float, *, welcomed: bool) -> None:
        """An attempt is over. `welcomed`: it had been of use."""
        if welcomed:
            self._backoff, self._down_since = _BACKOFF_FIRST_S, now

    def impatient(self, now: float) -> bool:
        """Says whether those who wait are to fail now."""
        after = self._unavailable_after
        if after is None:
            after = _NEVER if self._reached else _NEVER_THERE_S
        return now - self._down_since >= after

    def pause(self) -> float:
        """Seconds to wait before the next attempt; longer each time."""
        pause = max(self._retry_after, self._backoff) * self._rng.uniform(0.5, 1.0)
        self._backoff = min(2 * self._backoff, _BACKOFF_LAST_S)
        return pause


class Waits:
    """Futures by request id, and by lease that is being bound: each is resolved once, and a wait that ends without a
    lease leaves nothing behind in the machine. `wake`: the machine has something to say."""

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
        self._on_lost = on_lost
        self._on_frame = on_frame
        self._reconnection = Reconnection(unavailable_after, rng or random.Random())  # noqa: S311 - hides nothing
        self._dirty = asyncio.Event()
        self._waits = Waits(machine, transport.target, self._dirty.set)
        self._open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Begins to connect."""
        if self._task is not None or self._closing.is_set():
            raise RuntimeError("a session can be started only once")
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        self._reconnection.start(self.clock.now())
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Gives back what is waited for and what was granted and not bound, and ends the session. Leases with a hold
        time stay: work may run under them. Idempotent."""
        self._closing.set()
        task, self._task = self._task, None
        for request_id in list(self._waits.requests):
            self.machine.abandon(request_id)
        for lease in self.machine.holdings.idle():
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
            hold=hold,
            instead_of=instead_of,
        )
        if tracing.enabled():
            self.machine.trace(request_id, tracing.traceparent())
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Lease] = loop.create_future()
        self._waits.requests[request_id] = future
        self._dirty.set()
        # A plain timer: asyncio.timeout() costs more than everything else that is done here for one lease.
        backstop = loop.call_later(queue_timeout + _QUEUE_BACKSTOP_S, self._waits.overdue, request_id, future)
        delivered = False
        try:
            lease = await future
            delivered = True
            return lease
        finally:
            backstop.cancel()
            if self._waits.requests.get(request_id) is future:
                del self._waits.requests[request_id]
            if not delivered:
                self._waits.withdraw(request_id, future)

    def release(self, lease: Lease, outcome: ReleaseOutcome) -> None:
        """Gives a lease back; the word rides on the next frame."""
        self.machine.release(lease, outcome)
        self._dirty.set()

    async def bind(self, lease: Lease, run_id: str, timeout: float) -> BindOutcome:
        """Claims a lease. LimiterUnavailable when there is no answer in time; then the lease is given back."""
        self._check_usable()
        if lease in self._waits.binds or self.machine.holdings.held.get(lease):
            raise LeaseRefused(f"lease {lease} is in use by another run of this executor")
        future: asyncio.Future[BindOutcome] = asyncio.get_running_loop().create_future()
        self._waits.binds[lease] = future
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
            why = self._reconnection.trouble if not self.machine.welcomed else "it did not answer"
            raise LimiterUnavailable(f"limiter {self._transport.target}: no bind in {timeout:.1f} s: {why}") from None
        finally:
            self._waits.binds.pop(lease, None)
            if not answered:
                self.release(lease, ReleaseOutcome.UNUSED)
            if future.done() and not future.cancelled():
                future.exception()  # nobody else may have looked at it

    # The task

    async def _run(self) -> None:
        while not self._closing.is_set():
            self._reconnection.attempt()
            go_on = False
            try:
                connection = await self._transport.connect()
                try:
                    await self._converse(connection)
                finally:
                    await connection.close()
            except ConnectionLost as error:
                self._reconnection.failed(str(error))
                go_on = error.go_on
            self._open.clear()
            self._reconnection.ended(self.clock.now(), welcomed=self.machine.welcomed)
            trouble = self._reconnection.trouble
            for lease in self.machine.disconnected():
                self._waits.unanswered(lease, trouble)
            if self._reconnection.impatient(self.clock.now()):
                self._fail_all(trouble)
            # Safe to repeat: a hello says what is held and waited for, and changes nothing else.
            if not (go_on or self._closing.is_set()):
                await asyncio.sleep(self._reconnection.pause())

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
            self._reconnection.welcomed()
            self._open.set()
            while True:
                frame = await connection.receive()
                self._handle(self.machine.received(frame, self.clock.now()))
        except TimeoutError:
            raise ConnectionLost("no welcome in time") from None
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            error = None if writer.cancelled() else writer.exception()
            if error is not None:  # it comes first: the reader only notices that the stream was closed
                raise error

    async def _write(self, connection: Connection) -> None:
        """Writes what the machine has to say. While one frame is on its way, everything else is collected."""
        machine, dirty = self.machine, self._dirty
        alarm = Timer(dirty.set)
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
                if not self._waits.granted(item.request_id, item.lease):
                    self.release(item.lease, ReleaseOutcome.UNUSED)
            elif isinstance(item, RequestRefused):
                self._waits.refused(item)
            elif isinstance(item, BindOutcome):
                self._waits.bound(item)
            elif isinstance(item, Lost):
                if self._on_lost is not None:
                    self._on_lost(item.lease, item.reason)
            elif isinstance(item, GoneAway):
                self._reconnection.sent_away(item.reason, item.retry_after)
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
        self._waits.fail_all(why)
        if not self.machine.welcomed:  # binds that wait for a connection look again
            self._open.set()
            self._open.clear()

    def _check_usable(self) -> None:
        if self._loop is not asyncio.get_running_loop() or self._pid != os.getpid():
            raise RuntimeError("a limiter's client belongs to the event loop and the process that entered it")
        if self._task is None or self._task.done():
            raise LimiterUnavailable(f"limiter {self._transport.target}: this client is not open")
