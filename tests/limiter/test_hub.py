"""The hub between streams and core: whose stream a session is while its hello is not answered yet."""

from __future__ import annotations

from fairbox.clock import MonotonicClock
from limiter.core import BucketLimits, LimiterCore, SessionKind
from limiter.core.effects import Effect, Welcomed
from limiter.core.events import Hello, RosterKept
from limiter.server.hub import Hub


class Stream:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Effect] = []
        self.closed = ""

    def deliver(self, effect: Effect) -> None:
        self.told.append(effect)

    def close(self, reason: str, retry_after: float) -> None:
        self.closed = reason


async def test_late_hello_does_not_push_aside_a_newer_one_that_waits_for_the_roster() -> None:
    clock = MonotonicClock()
    core = LimiterCore(1, [BucketLimits("code")], now=clock.now(), keeps_roster=True)
    hub = Hub(core, clock)
    newer, late, newest = Stream(), Stream(), Stream()
    hub.open(Hello("x", SessionKind.EXECUTOR, connection=2), newer)
    hub.open(Hello("x", SessionKind.EXECUTOR, connection=1), late)
    assert (newer.closed, bool(late.closed)) == ("", True)
    hub.detach("x", late)
    hub.open(Hello("x", SessionKind.EXECUTOR, connection=3), newest)
    assert newer.closed
    hub.apply(RosterKept(1))
    assert [type(effect) for effect in newest.told] == [Welcomed]
    hub.close()
