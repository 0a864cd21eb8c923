"""Detects dead connections, as pure state machines: events heard and sent go in.

A connection can be dead without anybody noticing, as when a machine is lost: keepalive takes 14 s to notice, and a
client that only waits sends nothing that would reveal it. So the client sends a heartbeat when it has heard nothing for
a while, and gives the connection up when it hears nothing for as long again. A client that neither waits for nor holds
anything sends none. An executor sends heartbeats all the time: they keep its session alive, and each acknowledgement
says until when its work may run.
"""

from __future__ import annotations

from limiter.core.limits import CLOCK_RATE_ERROR

_NEVER = float("inf")
_OVERSLEPT_S = 0.25
"""Who looks so much later than it had to was stopped itself: what has come meanwhile is read before this is over."""
QUIET_S = 1.5
"""Without a word of the limiter about it: a dead connection is given up after 3 s."""


class KeepAlive:
    """Times are the caller's monotonic seconds. Ask `beat_at()` when it waits or holds something, and only then."""

    __slots__ = ("_asked", "_due", "_heard", "_quiet")

    def __init__(self) -> None:
        self._quiet = QUIET_S
        self.closed()

    def opened(self, now: float, quiet: float) -> None:
        """The session was welcomed, by a limiter that wants a heartbeat after `quiet` seconds; 0: it does not say."""
        self._quiet = quiet or QUIET_S
        self.heard(now)

    def closed(self) -> None:
        """There is no connection."""
        self._heard = self._asked = self._due = _NEVER

    def heard(self, now: float) -> None:
        """Anything has come."""
        self._heard, self._asked, self._due = now, _NEVER, _NEVER

    def beat(self, now: float) -> None:
        """A heartbeat is sent."""
        self._asked, self._due = now, now + self._quiet

    def beat_at(self) -> float:
        """When a heartbeat is to be sent; infinite while one is on its way, and without a connection."""
        return self._heard + self._quiet if self._asked == _NEVER else _NEVER

    def give_up_at(self) -> float:
        """When to ask `dead()`; infinite while no heartbeat is on its way."""
        return self._due

    def dead(self, now: float) -> bool:
        """Says whether to give the connection up."""
        if now < self._due:
            return False
        if now > self._due + _OVERSLEPT_S:
            self._due = now + _OVERSLEPT_S
            return False
        return True


_BEAT_SHARE, _BEAT_S = 0.25, 1.5
"""Heartbeats of an executor: so often in its ttl, and as often as clients beat if the ttl is long, so that a connection
that carries nothing is found as soon."""
_STALLED_SHARE, _STALLED_S = 0.5, 6.0
"""An acknowledgement that is overdue by this share of the ttl, and by so much if the ttl is long, means that the
connection is dead: a busy machine takes seconds to answer."""


class Heartbeats:
    """Heartbeats of an executor's session. Times are the caller's monotonic seconds."""

    __slots__ = ("_ttl", "due_at", "unacked")

    def __init__(self) -> None:
        self.due_at = _NEVER
        """Time of the next heartbeat."""
        self.unacked: dict[int, float] = {}
        """Number of each heartbeat that is on its way -> the time at which it was sent."""
        self._ttl = 0.0

    def opened(self, now: float, ttl: float) -> None:
        """The session was welcomed, by a limiter that ends it after `ttl` seconds without a heartbeat."""
        self._ttl = ttl
        self.due_at = now + self._every

    def closed(self) -> None:
        """There is no connection."""
        self.due_at = _NEVER
        self.unacked.clear()

    def sent(self, number: int, now: float) -> None:
        """A heartbeat is sent."""
        self.unacked[number] = now
        self.due_at = now + self._every if self._ttl else _NEVER

    def acked(self, number: int) -> float:
        """An acknowledgement has come. Returns the time until which work may run: it counts from the sending of the
        heartbeat, because whatever was sent later may not have reached the limiter."""
        sent = self.unacked.get(number)
        for old in [each for each in self.unacked if each <= number]:
            del self.unacked[old]
        return -_NEVER if sent is None else sent + self._ttl * (1 - 2 * CLOCK_RATE_ERROR)

    def overdue(self, now: float) -> bool:
        """Says whether an acknowledgement is so late that the connection must be taken for dead."""
        oldest = next(iter(self.unacked.values()), None)
        return oldest is not None and now - oldest > min(self._ttl * _STALLED_SHARE, _STALLED_S)

    @property
    def _every(self) -> float:
        return min(self._ttl * _BEAT_SHARE, _BEAT_S)
