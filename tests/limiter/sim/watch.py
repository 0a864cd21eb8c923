"""Looks at every decision of a core, for grants out of order and tokens that lie idle."""

from __future__ import annotations

from limiter.core import LimiterCore
from limiter.core.effects import Effect, Granted
from limiter.core.events import Event
from tests.limiter.sim.loop import Process
from tests.limiter.sim.world import World

__all__ = ["watch"]


def watch(core: LimiterCore, world: World, process: Process) -> None:
    """From now on the checker hears of what `core` does wrong, as long as its process lives."""
    decide = core.handle

    def handle(event: Event, now: float) -> list[Effect]:
        effects = decide(event, now)
        if process.dead:
            return effects
        for effect in effects:
            if isinstance(effect, Granted):
                _check_order(core, world, effect, now)
        if not core.recovering:
            _check_idle(core, world)
        return effects

    core.handle = handle  # type: ignore[method-assign]


def _check_order(core: LimiterCore, world: World, effect: Granted, now: float) -> None:
    world.checker.counts["grants"] += 1
    lease = core._ledger.leases.get(effect.leases[0])
    if lease is None or lease.request is None:
        return
    ticket = lease.request.ticket
    for waiting in core.queue(now, bucket=effect.bucket):
        if waiting.connected and waiting.ticket < ticket:
            text = f"ticket {ticket} of {effect.bucket} was granted before ticket {waiting.ticket}"
            world.checker.violated("order", text)


def _check_idle(core: LimiterCore, world: World) -> None:
    for bucket in core._ledger.buckets.values():
        head = bucket.queue.head()
        if head is not None and bucket.fits(head) and bucket.rate is None:
            world.checker.violated("idle", f"{bucket.cap - bucket.held} tokens are free, and {head.request_id} waits")
