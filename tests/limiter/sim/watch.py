"""Looks at every decision of a core, for grants out of order or too fast, turns that are passed, and idle tokens."""

from __future__ import annotations

from collections.abc import Iterable

from limiter.core import BucketOrder, LimiterCore
from limiter.core.effects import Configured, Effect, Granted, Refused
from limiter.core.events import Acquire, Configure, Event, Hello, ReadOn
from limiter.core.lease import Request
from limiter.core.ledger import waiting_for
from tests.limiter.sim.loop import Process
from tests.limiter.sim.pace import Pace
from tests.limiter.sim.turns import Turns
from tests.limiter.sim.unary import FORGER
from tests.limiter.sim.world import World

_TINY_S = 1e-6


def watch(core: LimiterCore, world: World, process: Process) -> None:
    """Reports everything that `core` does wrong to the checker, as long as its process lives."""
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
        self._claims_until = core._started
        self._seen: set[str] = set()
        """Requests of forgers."""
        for bucket in core._ledger.buckets.values():
            self._begin(bucket.limits.name, core._started)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Effect]:
        """One by one, which is the same for events of one instant, so that each decision can be judged by itself."""
        return [effect for event in events for effect in self._handle(event, now)]

    def _handle(self, event: Event, now: float) -> list[Effect]:
        core, recovering = self._core, self._core.recovering
        last = (core.epoch, core._ledger.last_ticket)
        effects = self._decide((event,), now)
        if self._process.dead:
            return effects
        if recovering and not core.recovering:
            self._claims_until = now + core.timing.client_return
            if not self._world.scenario.prompt:
                self._world.checker.excuse_unreported(core._ledger.leases.__contains__)
        if isinstance(event, (Hello, ReadOn, Acquire)):
            self._check_claims(event, last, now)
        for effect in effects:
            if isinstance(effect, Granted):
                self._granted(effect, now)
            elif isinstance(effect, Refused) and "sessions of kind executor are open" in effect.message:
                self._world.checker.violated("shut out", effect.message)
            elif isinstance(effect, Configured) and isinstance(event, Configure) and effect.changed:
                self._world.checker.configured(effect.bucket, event.limits.max_in_flight)
                self._begin(effect.bucket, now, changed=True)
        if core._leads and not core.recovering and not core._session_rules._unread:
            self._check_idle(now)
        for name, turns in self._turns.items():
            turns.settle({each.tenant for each in self._waiting(name)})
            for text in turns.found():
                self._world.checker.violated("fair", text)
        return effects

    def _check_claims(self, event: Hello | ReadOn | Acquire, last: tuple[int, int], now: float) -> None:
        """Nobody gains by claims that are not true, or that are made too late or too often."""
        core, checker = self._core, self._world.checker
        session = core._ledger.sessions.get(event.session_id)
        forger = event.session_id in checker.forgers
        if isinstance(event, Hello) and (event.name == FORGER) is not forger:
            checker.violated("forged", f"{event.name} has opened a session that is not its own")
        if session is None or not forger:
            return
        for request in session.requests.values():
            if request.request_id not in self._seen and request.ticket <= last:
                checker.violated("forged", f"a request has come to place {request.ticket}, the last is {last}")
            self._seen.add(request.request_id)
        adopted = [lease for lease in session.leases.values() if lease.request is None and lease.granted_at == now]
        for lease in adopted:
            checker.count("a claim was believed")
            late = not core.recovering and now >= self._claims_until
            if late or (lease.lease_id, event.session_id) not in self._world.given:
                checker.violated(
                    "forged", f"lease {lease.lease_id} counts, and has not been granted or was claimed late"
                )
            if lease.bucket.held > lease.bucket.limits.max_in_flight:
                checker.violated("forged", f"{lease.bucket.held} tokens of {lease.bucket.limits.name} are claimed")

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
        if effect.held:
            checker.granted_at[effect.lease] = self._world.loop.true_time
            self._world.given.add((effect.lease, effect.session_id))
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
        """Requests that wait for their turn: their sessions are connected, and their hellos have been read."""
        ledger, unread = self._core._ledger, self._core._session_rules._unread
        waiting = [each for each in waiting_for(ledger, ledger.buckets[bucket]) if each.session.connected]
        return [each for each in waiting if each.session.session_id not in unread]

    def _check_idle(self, now: float) -> None:
        for bucket in self._core._ledger.buckets.values():
            head = bucket.queue.head()
            if head is None or not bucket.fits(head):
                continue
            if bucket.rate is None or bucket.ready_at() < now - _TINY_S:
                text = f"{bucket.cap - bucket.held} tokens are free, and {head.request_id} waits"
                self._world.checker.violated("idle", text)
