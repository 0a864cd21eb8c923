"""Runs a core against a clock: one timer, and effects to whoever they are for.

Invariants: the core is called from one thread and never from within itself; an effect for a session goes to the stream
that said hello last, or to the unary calls; nothing but a unary call waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from fairbox.clock import Clock
from limiter.core import LimiterCore, RejectReason, SessionKind
from limiter.core.effects import (
    Configured,
    Effect,
    Granted,
    Queued,
    Refused,
    Rejected,
    Released,
    RevokeAnswered,
    RosterChanged,
    SteppedDown,
    Unread,
    Welcomed,
)
from limiter.core.events import Acquire, Cancel, Disconnect, Event, Hello, LeadUntil, ReadOn, Tick
from limiter.server.claims import Claims
from limiter.timer import Timer

_RESUMED = "another stream has resumed this session"
_LATE = "a later connection of this session has said hello already"


class Sink(Protocol):
    """A stream that effects are told to."""

    def deliver(self, effect: Effect) -> None:
        """Takes one effect for its session; must not wait and must not call the runner."""
        ...

    def close(self, reason: str, retry_after: float) -> None:
        """Ends the stream after what was delivered; must not wait and must not call the runner."""
        ...


# The unary calls: each waits for the end of its request's wait, and several may wait for the same one.
#
# Invariants: a call that ends without handing its lease to its caller gives it back, unless another call waits for the
# same request; every wait is bounded by the queue timeout that the core enforces.


_BACKSTOP_S = 5.0
"""The core answers at the queue timeout; a call that waits for this much longer looks itself."""

Ending = Granted | Rejected


class UnaryCalls:
    """Waits for grants on behalf of unary calls."""

    def __init__(self, runner: CoreRunner) -> None:
        self._runner = runner
        self._waiting: dict[tuple[str, str], list[asyncio.Future[Ending]]] = {}

    async def acquire(self, event: Acquire) -> Ending:
        """Applies `event` and waits for its end."""
        key = (event.session_id, event.request_id)
        if self._runner.closed:
            return _shutting_down(*key)
        future: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        delivered = False
        try:
            self._runner.apply(event)
            await asyncio.wait([future], timeout=event.queue_timeout + _BACKSTOP_S)
            if not future.done():
                self._runner.apply(Tick())  # the process was stopped: what is due has not happened yet
            ending = future.result()
            delivered = True
            return ending
        finally:
            futures = self._waiting.get(key, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._waiting.pop(key, None)
            if not delivered and not futures:
                # The caller is gone, so nobody will use the grant. Safe to repeat: cancelling is idempotent.
                self._runner.apply(Cancel(event.session_id, event.request_id))

    def deliver(self, effect: Ending) -> None:
        """Ends the waits for one request; ignores what nobody waits for."""
        for future in self._waiting.pop((effect.session_id, effect.request_id), ()):
            if not future.done():
                future.set_result(effect)

    def close(self) -> None:
        """Ends every wait: the limiter is going away."""
        for key in list(self._waiting):
            self.deliver(_shutting_down(*key))


def _shutting_down(session_id: str, request_id: str) -> Rejected:
    message = "the limiter is shutting down"
    return Rejected(session_id, request_id, RejectReason.SHUTTING_DOWN, message, 1.0)


class CoreRunner:
    """`apply(event)` is the only way to the core. Make it inside the running loop; `close()` it.

    `claims` makes and checks proofs for its streams. `lead_until` says how long nobody else can lead. `on_roster` is
    given each roster that has to be kept, and must see to it that `RosterKept` is applied; `on_stepped_down` is called
    once when another limiter may lead.
    """

    def __init__(
        self,
        core: LimiterCore,
        clock: Clock,
        *,
        claims: Claims | None = None,
        lead_until: Callable[[], float] | None = None,
        on_roster: Callable[[RosterChanged], None] | None = None,
        on_stepped_down: Callable[[], None] | None = None,
    ) -> None:
        self.core = core
        self.clock = clock
        self.claims = claims or Claims(b"")
        self.unary = UnaryCalls(self)
        self.reading = {kind: asyncio.Lock() for kind in SessionKind}
        """Held while a hello of that kind is read: executors don't wait for clients."""
        self.closed = False
        self._lead_until = lead_until
        self._led = float("inf")
        self._on_roster = on_roster
        self._on_stepped_down = on_stepped_down
        self._sinks: dict[str, Sink] = {}
        self._opening: dict[str, tuple[Sink, int]] = {}
        """Streams whose hello has not been answered, and the numbers of their connections."""
        self._unread: dict[str, asyncio.Future[None]] = {}
        """Sessions whose hellos are being read, a step of one of them in each turn of the loop, and their ends."""
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(lambda: self.apply(Tick()))
        self.apply(Tick())

    def apply(self, event: Event) -> list[Effect]:
        """Applies one event now, tells everybody, and returns what was decided."""
        now = self._now()
        effects = self.core.handle(event, now)
        for effect in effects:
            self._tell(effect)
        self._watch()
        return effects

    def apply_all(self, events: Iterable[Event]) -> None:
        """The same for all events of one frame, which happen at one instant: cheaper than one by one."""
        sinks = self._sinks
        for effect in self.core.handle_all(events, self._now()):
            if isinstance(effect, Released):
                continue
            if isinstance(effect, Granted) or isinstance(effect, Queued):  # noqa: SIM101 - one by one is faster
                sink = sinks.get(effect.session_id)
                if sink is not None:
                    sink.deliver(effect)
                    continue
            self._tell(effect)
        self._watch()

    def open(self, hello: Hello, sink: Sink) -> None:
        """Opens or resumes a session with `sink` as its stream; an older stream is closed. A refusal is told to `sink`
        and changes nothing. The answer may take a while: an executor has to be on the roster first."""
        old, newest = self._opening.get(hello.session_id, (None, 0))
        if 0 < hello.connection < newest:
            sink.close(_LATE, 0.0)
            return
        self._opening[hello.session_id] = (sink, hello.connection)
        if old is not None:
            old.close(_RESUMED, 0.0)
        self.apply(hello)

    async def read(self, session_id: str) -> None:
        """Returns when the hello of that session has been read to its end, or has waited for its roster."""
        if session_id in self._unread:
            await asyncio.wait([self._unread[session_id]])

    def detach(self, session_id: str, sink: Sink) -> None:
        """The stream has ended. Does nothing when it is not the session's stream any more."""
        if self._opening.get(session_id, (None, 0))[0] is sink:
            del self._opening[session_id]
            if session_id not in self._sinks:
                self.apply(Disconnect(session_id))
        elif self._sinks.get(session_id) is sink:
            del self._sinks[session_id]
            self.apply(Disconnect(session_id))

    def close(self, reason: str = "the limiter is shutting down", retry_after: float = 1.0) -> None:
        """Ends every stream and every wait. Idempotent."""
        self.closed = True
        self._timer.cancel()
        for sink in [*self._sinks.values(), *(opening for opening, _ in self._opening.values())]:
            sink.close(reason, retry_after)
        self.unary.close()

    def _now(self) -> float:
        """The time, after the core was told for how long it may lead."""
        now = self.clock.now()
        if self._lead_until is not None and (until := self._lead_until()) != self._led:
            self._led = until
            for effect in self.core.handle(LeadUntil(until), now):
                self._tell(effect)
        return now

    def _watch(self) -> None:
        """Sees to it that the timer rings in time."""
        deadline = self.core.next_deadline()
        if deadline is not None and not self.closed:
            self._timer.set(self.clock.now(), deadline)

    def _tell(self, effect: Effect) -> None:
        if isinstance(effect, (Granted, Queued)):  # most are one of these
            sink = self._sinks.get(effect.session_id)
            if sink is not None:
                sink.deliver(effect)
                return
        if isinstance(effect, (RevokeAnswered, Configured, Released)):
            return
        if isinstance(effect, Unread):
            self._read_later(effect.session_id)
            return
        if isinstance(effect, RosterChanged):
            if self._on_roster is not None:
                self._on_roster(effect)
            return
        if isinstance(effect, SteppedDown):
            self.close("another limiter may lead", 0.1)
            if self._on_stepped_down is not None:
                self._on_stepped_down()
            return
        if isinstance(effect, (Welcomed, Refused)) and self._opened(effect):
            return
        sink = self._sinks.get(effect.session_id)
        if sink is not None:
            sink.deliver(effect)
        elif isinstance(effect, (Granted, Rejected)):
            self.unary.deliver(effect)

    def _opened(self, effect: Welcomed | Refused) -> bool:
        """A hello was answered: a welcome makes its stream the session's. Whether that was all."""
        sink, _ = self._opening.pop(effect.session_id, (None, 0))
        if sink is None:
            return False
        if isinstance(effect, Refused):
            sink.deliver(effect)
            return True
        old = self._sinks.get(effect.session_id)
        self._sinks[effect.session_id] = sink
        if old is not None:
            old.close(_RESUMED, 0.0)
        return False

    def _read_later(self, session_id: str) -> None:
        """Has the hello read in steps, and closes the session's older stream, which must not speak between them."""
        old = self._sinks.pop(session_id, None) if session_id in self._opening else None
        if old is not None:
            old.close(_RESUMED, 0.0)
        if not self._unread:
            self._loop.call_soon(self._read_on)
        self._unread.setdefault(session_id, self._loop.create_future())

    def _read_on(self) -> None:
        session_id, future = next(iter(self._unread.items()))
        more = not self.closed and Unread(session_id) in self.apply(ReadOn(session_id))
        if not more:
            del self._unread[session_id]
            future.set_result(None)
        if self._unread:
            self._loop.call_soon(self._read_on)
