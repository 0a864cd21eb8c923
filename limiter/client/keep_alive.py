"""Detects dead connections of a client, as a pure state machine: events heard and sent go in.

A connection can be dead without anybody noticing, as when a machine is lost: keepalive takes 14 s to notice, and a
client that only waits sends nothing that would reveal it. So the client sends a heartbeat when it has heard nothing for
a while, and gives the connection up when it hears nothing for as long again. A client that neither waits for nor holds
anything sends none. Executors have heartbeats of their own, which keep their sessions alive.
"""

from __future__ import annotations

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
