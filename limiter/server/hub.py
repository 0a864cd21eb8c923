"""Runs a core against a clock: one timer, and effects to whoever they are for.

Invariants: the core is called from one thread and never from within itself; an effect for a session goes to the stream
that said hello last, or to the unary calls; nothing here waits.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from fairbox.clock import Clock
from limiter.core import LimiterCore
from limiter.core.effects import Configured, Effect, Granted, Refused, Rejected, RevokeAnswered, Welcomed
from limiter.core.events import Disconnect, Event, Hello, Tick

__all__ = ["Hub", "Sink", "UnarySink"]


class Sink(Protocol):
    """A stream that effects are told to."""

    def deliver(self, effect: Effect) -> None:
        """Takes one effect for its session; must not wait and must not call the hub."""
        ...

    def close(self, reason: str, retry_after: float) -> None:
        """Ends the stream after what was delivered; must not wait and must not call the hub."""
        ...


class UnarySink(Protocol):
    """The unary calls."""

    def deliver(self, effect: Granted | Rejected) -> None:
        """Takes the end of a wait; ignores what nobody waits for."""
        ...

    def close(self) -> None:
        """Ends every wait: the limiter is going away."""
        ...


class Hub:
    """`apply(event)` is the only way to the core. Make it inside the running loop; `close()` it."""

    def __init__(self, core: LimiterCore, clock: Clock) -> None:
        self.core = core
        self.clock = clock
        self.unary: UnarySink | None = None
        self.closed = False
        self._sinks: dict[str, Sink] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def apply(self, event: Event) -> list[Effect]:
        """Applies one event now, tells everybody, and returns what was decided."""
        effects = self.core.handle(event, self.clock.now())
        for effect in effects:
            self._tell(effect)
        deadline = self.core.next_deadline()
        if deadline is not None and deadline < self._timer_at:
            self._set_timer(deadline)
        return effects

    def open(self, hello: Hello, sink: Sink) -> None:
        """Opens or resumes a session with `sink` as its stream; an older stream is closed. A refusal is told to `sink`
        and changes nothing."""
        for effect in self.core.handle(hello, self.clock.now()):
            if isinstance(effect, Refused):
                sink.deliver(effect)
                continue
            if isinstance(effect, Welcomed):
                old = self._sinks.get(hello.session_id)
                self._sinks[hello.session_id] = sink
                if old is not None:
                    old.close("another stream has resumed this session", 0.0)
            self._tell(effect)
        self.apply(Tick())

    def detach(self, session_id: str, sink: Sink) -> None:
        """The stream has ended. Does nothing when it is not the session's stream any more."""
        if self._sinks.get(session_id) is sink:
            del self._sinks[session_id]
            self.apply(Disconnect(session_id))

    def close(self, reason: str = "the limiter is shutting down", retry_after: float = 1.0) -> None:
        """Ends every stream and every wait. Idempotent."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = float("-inf")
        for sink in list(self._sinks.values()):
            sink.close(reason, retry_after)
        if self.unary is not None:
            self.unary.close()

    def _tell(self, effect: Effect) -> None:
        if isinstance(effect, (RevokeAnswered, Configured)):
            return
        sink = self._sinks.get(effect.session_id)
        if sink is not None:
            sink.deliver(effect)
        elif self.unary is not None and isinstance(effect, (Granted, Rejected)):
            self.unary.deliver(effect)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self.clock.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.apply(Tick())
