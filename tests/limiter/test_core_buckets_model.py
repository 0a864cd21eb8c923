"""Rate, fair order, pause, adaptive limit, reconfiguration and leases that nobody binds, against lists.

One bucket, two clients that come and go, and an executor that stays. The model keeps who waits, who holds, whose turn
it is and how much of the rate is left, and judges each grant by them; after each step it asks whether anything waits
that could run.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from limiter.core import (
    BucketLimits,
    BucketOrder,
    LeaseId,
    LimiterCore,
    RejectReason,
    ReleaseOutcome,
    SessionKind,
    Ticket,
    Timing,
)
from limiter.core.effects import Configured, Effect, Granted, Queued, Rejected, Revoked, Welcomed
from limiter.core.events import (
    Acquire,
    Bind,
    Cancel,
    Configure,
    Disconnect,
    Event,
    Heartbeat,
    HeldLease,
    Hello,
    Release,
    Tick,
)
from tests.limiter.cores import listed

GRACE = 1.5
CLIENTS = ("c0", "c1")
EXECUTOR = "e"
TINY = 1e-6
NAMES = st.sampled_from(CLIENTS)
TENANTS = st.sampled_from("abc")
TOKENS = st.sampled_from([1, 1, 2, 3])
HOLDS = st.sampled_from([0.0, 7.0])
OUTCOMES = st.sampled_from(["ok", "ok", "overloaded", "timeout"])
LIMITS = st.builds(
    BucketLimits,
    st.just("code"),
    st.sampled_from([2, 3, 5]),
    st.just(20),
    st.just(20),
    st.just(5.0),
    rate_per_s=st.sampled_from([0.0, 1.0, 3.5]),
    burst=st.sampled_from([0, 1, 6]),
    order=st.sampled_from(BucketOrder),
    adaptive=st.booleans(),
    paused=st.sampled_from([False] * 7 + [True]),
    max_hold=st.sampled_from([0.0, 8.0, 8.0]),
)


@dataclass
class Want:
    """A request that waits."""

    asked: Acquire
    ticket: Ticket

    @property
    def session(self) -> str:
        return self.asked.session_id


@dataclass
class Held:
    """A lease."""

    asked: Acquire
    holder: str
    since: float
    bound: bool = False


class BucketMachine(RuleBasedStateMachine):
    """Drives one bucket of a core through random events."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.limits = BucketLimits("code", 3, 20, 20, 5.0, max_hold=8.0)
        self.version = 1
        self.serial = 0
        self.level = 0.0
        self.level_at = self.now
        self.waiting: list[Want] = []
        self.turns: list[str] = []
        self.held: dict[LeaseId, Held] = {}
        self.connected = {EXECUTOR, *CLIENTS}
        self.gone_at: dict[str, float] = {}
        self.acquiring: Acquire | None = None
        self.core = LimiterCore(7, [self.limits], now=self.now, timing=Timing(grace=GRACE))

    @initialize(limits=LIMITS, idle=st.sampled_from([0.0, 100.0]))
    def connect_all(self, limits: BucketLimits, idle: float) -> None:
        self.send(Configure(limits, 1))
        self.now += idle
        self.send(Hello(EXECUTOR, SessionKind.EXECUTOR))
        for name in CLIENTS:
            self.send(Hello(name, SessionKind.CLIENT))

    # The model

    def in_hand(self) -> int:
        return sum(held.asked.tokens for held in self.held.values())

    def eligible(self) -> list[Want]:
        """Waiting requests, by ticket, without those of lost streams."""
        found = [w for w in self.waiting if w.session in self.connected]
        return sorted(found, key=lambda want: want.ticket)

    def in_order(self) -> list[Want]:
        """The queue in the order in which it has to be granted."""
        eligible = self.eligible()
        if self.limits.order is BucketOrder.FIFO:
            return eligible
        lines = [[w for w in eligible if w.asked.tenant == tenant] for tenant in self.turns]
        return [line[index] for index in range(len(eligible)) for line in lines if index < len(line)]

    def keep_turns(self) -> None:
        active = [want.asked.tenant for want in self.waiting if want.session in self.connected]
        self.turns = [tenant for tenant in self.turns if tenant in active]
        self.turns += [tenant for tenant in dict.fromkeys(active) if tenant not in self.turns]

    def fill(self) -> None:
        if self.limits.rate_per_s:
            gained = (self.now - self.level_at) * self.limits.rate_per_s
            self.level = min(float(self.limits.most_at_once), self.level + gained)
        self.level_at = self.now

    def fits(self, tokens: int) -> bool:
        effective = self.core.statistics(self.now).bucket().effective_limit
        return not self.limits.paused and (tokens + self.in_hand() <= effective or not self.held)

    def drop(self, session: str, request_id: str) -> None:
        self.waiting = [w for w in self.waiting if (w.session, w.asked.request_id) != (session, request_id)]
        self.keep_turns()

    # Events and effects

    def send(self, event: Event) -> list[Effect]:
        for name in [name for name, when in self.gone_at.items() if when + GRACE <= self.now]:
            del self.gone_at[name]
            self.waiting = [want for want in self.waiting if want.session != name]
        self.keep_turns()
        effects = self.core.handle(Tick(), self.now)
        self.check(effects)
        if isinstance(event, Configure):
            self.reconfigure(event.limits)
        told = self.core.handle(event, self.now)
        self.check(told)
        return effects + told

    def check(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                self.check_grant(effect)
            elif isinstance(effect, Queued):
                self.check_queued(effect)
            elif isinstance(effect, Rejected):
                if effect.reason is RejectReason.INVALID and self.acquiring is not None:
                    assert self.unacceptable(self.acquiring), effect.message
                self.drop(effect.session_id, effect.request_id)
            elif isinstance(effect, Revoked):
                gone = self.held.pop(effect.lease)
                assert gone.holder == effect.session_id
                assert not gone.bound
                assert self.now >= gone.since + gone.asked.hold, "ended before its hold time"
            elif isinstance(effect, Welcomed):
                assert effect.unknown == ()

    def check_grant(self, effect: Granted) -> None:
        want = next((w for w in self.waiting if w.asked.request_id == effect.request_id), None)
        asked = want.asked if want is not None else self.acquiring
        assert asked is not None
        assert effect.session_id in self.connected
        lease = effect.lease
        assert next(iter(self.in_order()), want) is want, "granted out of order"
        assert self.fits(asked.tokens), "granted above the limit, or while paused"
        if self.limits.rate_per_s:
            self.fill()
            self.level -= 1
            assert self.level >= -TINY, "granted beyond the rate"
        self.held[lease] = Held(asked, effect.session_id, self.now)
        if want is not None:
            self.waiting.remove(want)
            if asked.tenant in self.turns:
                self.turns.remove(asked.tenant)
            self.keep_turns()

    def check_queued(self, effect: Queued) -> None:
        asked = self.acquiring
        assert asked is not None
        want = Want(asked, effect.ticket)
        assert all(other.ticket < want.ticket for other in self.waiting)
        self.waiting.append(want)
        self.keep_turns()

    def unacceptable(self, asked: Acquire) -> bool:
        return asked.hold > self.limits.max_hold or asked.tokens > self.limits.max_in_flight

    def reconfigure(self, limits: BucketLimits) -> None:
        self.fill()
        had_rate, order = self.limits.rate_per_s, self.limits.order
        self.limits = limits
        self.version += 1
        self.level = min(self.level, float(limits.most_at_once)) if had_rate and limits.rate_per_s else 0.0
        if limits.order is not order:
            stay = [want for want in self.eligible() if not self.unacceptable(want.asked)]
            self.turns = list(dict.fromkeys(want.asked.tenant for want in stay))

    # Rules

    def ask(self, name: str, tokens: int, tenant: str, **more: float) -> None:
        self.send(Tick())
        if name in self.connected:
            self.serial += 1
            self.acquiring = Acquire(
                name,
                f"r{self.serial}",
                tokens=tokens,
                queue_timeout=more.get("timeout", 60.0),
                hold=more.get("hold", 0.0),
                tenant=tenant,
            )
            effects = self.send(self.acquiring)
            assert isinstance(effects[-1], (Granted, Queued, Rejected))
            self.acquiring = None

    @rule(name=NAMES, tokens=TOKENS, tenant=TENANTS, hold=HOLDS, timeout=st.sampled_from([1.0, 60.0]))
    def acquire(self, name: str, tokens: int, tenant: str, hold: float, timeout: float) -> None:
        self.ask(name, tokens, tenant, hold=hold, timeout=timeout)

    @rule(name=NAMES, crowd=st.lists(st.tuples(st.sampled_from("aabc"), TOKENS), min_size=2, max_size=6))
    def crowd(self, name: str, crowd: list[tuple[str, int]]) -> None:
        for tenant, tokens in crowd:
            self.ask(name, tokens, tenant)

    @rule(rounds=st.integers(1, 4), outcome=OUTCOMES)
    def serve(self, rounds: int, outcome: str) -> None:
        """All that is held ends, and a second later whatever was granted in its stead does, and so on."""
        for _ in range(rounds):
            self.release(len(self.held), 0, outcome)
            self.advance(1.0)

    @rule(name=NAMES, tenant=TENANTS)
    def ask_for_all_after_overload(self, name: str, tenant: str) -> None:
        """A request that an adapted limit has come to lie below finds nothing held, and as a rule nobody before it."""
        self.serve(3, "overloaded")
        self.ask(name, min(3, self.limits.max_in_flight), tenant)

    @rule(count=st.integers(1, 6), which=st.sampled_from([0, 1, -1]), outcome=OUTCOMES)
    def release(self, count: int, which: int, outcome: str) -> None:
        """Holders release, oldest or newest lease first, or from the middle."""
        for _ in range(count):
            self.send(Tick())
            mine = sorted(lease for lease, held in self.held.items() if held.holder in self.connected)
            if mine:
                lease = mine[min(which, len(mine) - 1)]
                held = self.held.pop(lease)
                self.send(Release(held.holder, lease, ReleaseOutcome(outcome)))

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        self.send(Tick())
        if self.held:
            lease = data.draw(st.sampled_from(sorted(self.held)))
            self.send(Bind(EXECUTOR, lease, self.held[lease].asked.session_id))
            self.held[lease].bound, self.held[lease].holder = True, EXECUTOR

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.send(Tick())
        mine = sorted((w.session, w.asked.request_id) for w in self.waiting if w.session in self.connected)
        if mine:
            session, request_id = data.draw(st.sampled_from(mine))
            self.drop(session, request_id)
            self.send(Cancel(session, request_id))

    @rule(name=NAMES)
    def disconnect(self, name: str) -> None:
        self.send(Tick())
        if name in self.connected:
            self.connected.discard(name)
            self.gone_at[name] = self.now
            self.send(Disconnect(name))

    @rule(name=NAMES)
    def reconnect(self, name: str) -> None:
        self.send(Tick())
        self.gone_at.pop(name, None)
        self.connected.add(name)
        self.keep_turns()
        held = [lease for lease, held in self.held.items() if held.holder == name]
        self.send(
            Hello(
                name,
                SessionKind.CLIENT,
                held=tuple(HeldLease(lease, "code", self.held[lease].asked.session_id) for lease in held),
                queued=tuple(
                    Acquire(name, want.asked.request_id, tokens=want.asked.tokens, ticket=want.ticket)
                    for want in self.waiting
                    if want.session == name
                ),
            )
        )

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 1.6, 5.1]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.send(Heartbeat(EXECUTOR, 1))

    @rule(limits=LIMITS)
    def configure(self, limits: BucketLimits) -> None:
        self.send(Tick())
        before = set(self.held)
        assert Configured("code", self.version + 1, True) in self.send(Configure(limits, self.version))
        assert before <= set(self.held), "a change of the bucket ended a lease"

    # What always holds

    @invariant()
    def books_agree(self) -> None:
        statistics = self.core.statistics(self.now).bucket()
        leases = self.core.leases()
        assert [lease.lease_id for lease in leases] == sorted(self.held)
        assert statistics.held == self.in_hand() == sum(lease.tokens for lease in leases)
        assert statistics.bound == sum(lease.tokens for lease in leases if lease.state == "bound")
        assert statistics.queued == len(self.waiting)
        assert listed(self.core) == [want.asked.request_id for want in self.in_order()]
        rate = self.core._ledger.buckets["code"].rate
        assert rate is None or rate._empty_at <= self.now + TINY, "the rate bucket is negative"

    @invariant()
    def works_whenever_it_can(self) -> None:
        self.fill()
        head = next(iter(self.in_order()), None)
        ready = not self.limits.rate_per_s or self.level >= 1 + TINY
        assert head is None or not ready or not self.fits(head.asked.tokens), "a head waits that fits"
        for want in self.waiting:
            assert want.asked.hold <= self.limits.max_hold
            assert want.asked.tokens <= self.limits.max_in_flight

    def teardown(self) -> None:
        """Everybody leaves, and nothing stays."""
        for name in sorted(self.connected):
            self.core.handle(Disconnect(name), self.now)
        while (deadline := self.core.next_deadline()) is not None:
            self.now = max(self.now, deadline)
            self.core.handle(Tick(), self.now)
        left = self.core.statistics(self.now)
        assert (left.held, left.bound, left.queued, left.sessions) == (0, 0, 0, 0)
        assert not self.core._ledger.leases


TestBuckets = BucketMachine.TestCase
TestBuckets.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
