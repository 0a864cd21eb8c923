"""Looks at every decision of a core, for grants out of order or too fast, turns that are passed, and idle tokens."""

from __future__ import annotations

from collections.abc import Iterable

from limiter.core import BucketOrder, LimiterCore
from limiter.core.effects import Configured, Effect, Granted
from limiter.core.events import Configure, Event
from limiter.core.lease import Request
from tests.limiter.sim.loop import Process
from tests.limiter.sim.pace import Pace
from tests.limiter.sim.turns import Turns
from tests.limiter.sim.world import World

_TINY_S = 1e-6


def watch(core: LimiterCore, world: World, process: Process) -> None:
    """From now on the checker hears of what `core` does wrong, as long as its process lives."""
    watcher = _Watcher(core, world, process)
    core.handle_all = watcher.handle_all  # type: ignore[method-assign]  # `handle` goes through it


class _Watcher:
    def __init__(self, core: LimiterCore, world: World, process: Process) -> None:
        self._core = core
        self._decide = core.handle_all
        self._world = world
        self._process = process
        self._paces: dict[str, Pace] = {}
        self._turns: dict[str, Turns] = {}
        for bucket in core._ledger.buckets.values():
            self._begin(bucket.limits.name, core._started)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Effect]:
        """One by one, which is the same for events of one instant, so that each decision can be judged by itself."""
        return [effect for event in events for effect in self._handle(event, now)]

    def _handle(self, event: Event, now: float) -> list[Effect]:
        effects = self._decide((event,), now)
        if self._process.dead:
            return effects
        for effect in effects:
            if isinstance(effect, Granted):
                self._granted(effect, now)
            elif isinstance(effect, Configured) and isinstance(event, Configure) and effect.changed:
                self._world.checker.configured(effect.bucket, event.limits.max_in_flight)
                self._begin(effect.bucket, now, changed=True)
        if not self._core.recovering:
            self._check_idle(now)
        for name, turns in self._turns.items():
            turns.settle({each.tenant for each in self._waiting(name)})
            for text in turns.found():
                self._world.checker.violated("fair", text)
        return effects

    def _begin(self, name: str, now: float, *, changed: bool = False) -> None:
        """The bucket's rules are others from now on."""
        limits = self._core._ledger.buckets[name].limits
        self._paces.pop(name, None)
        self._turns.pop(name, None)
        if limits.rate_per_s:
            burst = limits.most_at_once
            self._paces[name] = Pace(limits.rate_per_s, burst, now, saved=float(burst) if changed else 0.0)
        if limits.order is BucketOrder.FAIR_BY_TENANT:
            self._turns[name] = Turns()

    def _granted(self, effect: Granted, now: float) -> None:
        checker, core = self._world.checker, self._core
        checker.counts["grants"] += 1
        lease = core._ledger.leases.get(effect.lease)
        if lease is None or lease.request is None:
            return
        pace = self._paces.get(effect.bucket)
        if pace is not None and not pace.allows(1, now):
            checker.violated("rate", f"{effect.bucket} grants faster than {pace}")
        turns = self._turns.get(effect.bucket)
        if turns is not None:
            turns.granted(lease.request.tenant)
        self._check_order(lease.request, effect)

    def _check_order(self, request: Request, effect: Granted) -> None:
        fair = effect.bucket in self._turns
        for waiting in self._waiting(effect.bucket):
            if fair and waiting.tenant != request.tenant:
                continue
            if waiting.ticket < request.ticket:
                text = f"ticket {request.ticket} of {effect.bucket} was granted before ticket {waiting.ticket}"
                self._world.checker.violated("order", text)

    def _waiting(self, bucket: str) -> list[Request]:
        """Those that wait for their turn: their sessions are connected."""
        ledger = self._core._ledger
        return [each for each in ledger.waiting_for(ledger.buckets[bucket]) if each.session.connected]

    def _check_idle(self, now: float) -> None:
        for bucket in self._core._ledger.buckets.values():
            head = bucket.queue.head()
            if head is None or not bucket.fits(head):
                continue
            if bucket.rate is None or bucket.ready_at() < now - _TINY_S:
                text = f"{bucket.cap - bucket.held} tokens are free, and {head.request_id} waits"
                self._world.checker.violated("idle", text)
