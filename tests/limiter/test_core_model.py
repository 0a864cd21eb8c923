"""The core against a small model, over random histories: order, limit, bounds, and nothing left when all is quiet."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from limiter.core import BindStatus, BucketLimits, LeaseId, LimiterCore, RejectReason, SessionKind, Ticket, Timing
from limiter.core.effects import BindAnswered, Effect, Granted, Queued, Rejected, Revoked, SessionEnded, Welcomed
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
from limiter.core.ledger import waiting_for

TIMING = Timing(grace=1.5, executor_ttl=6.0, tombstone_ttl=10.0)
CLIENTS = ("c0", "c1", "c2")
EXECUTORS = ("e0", "e1")
MAX_QUEUED = 12
MAX_QUEUED_PER_CLIENT = 6


@dataclass
class Want:
    """A request that waits, as the model sees it."""

    session: str
    request_id: str
    tokens: int
    ticket: Ticket


@dataclass
class Held:
    """A lease, as the model sees it."""

    lease: LeaseId
    tokens: int
    client: str
    holder: str
    request_id: str
    bound: bool = False


class LimiterMachine(RuleBasedStateMachine):
    """Drives a core through random events and keeps its own list of who waits and who holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.limit = 4
        self.version = 1
        self.serial = 0
        self.waiting: list[Want] = []
        self.held: dict[LeaseId, Held] = {}
        self.connected: set[str] = set()
        self.heard: dict[str, float] = {}
        self.acquiring: Acquire | None = None
        limits = BucketLimits("code", 4, MAX_QUEUED, MAX_QUEUED_PER_CLIENT, 5.0)
        self.core = LimiterCore(7, [limits], now=self.now, timing=TIMING)

    @initialize()
    def connect_all(self) -> None:
        for name in CLIENTS:
            self.hello(name, SessionKind.CLIENT)
        for name in EXECUTORS:
            self.hello(name, SessionKind.EXECUTOR)

    def hello(self, name: str, kind: SessionKind, *, keep: bool = True) -> None:
        """Connects; with `keep` it lists everything that the model says it has."""
        mine = [held for held in self.held.values() if held.holder == name] if keep else []
        queued = [want for want in self.waiting if want.session == name] if keep else []
        for held in [held for held in self.held.values() if held.holder == name and not keep]:
            del self.held[held.lease]
        if not keep:
            self.waiting = [want for want in self.waiting if want.session != name]
        self.connected.add(name)
        self.send(
            Hello(
                name,
                kind,
                name,
                tuple(HeldLease(held.lease, "code", held.client, held.tokens) for held in mine),
                tuple(Acquire(name, w.request_id, tokens=w.tokens, ticket=w.ticket) for w in queued),
            )
        )

    def send(self, event: Event) -> list[Effect]:
        if isinstance(event, (Hello, Heartbeat, Bind)) or (
            isinstance(event, Release) and event.session_id in EXECUTORS
        ):
            expired = self.core.handle(Tick(), self.now)
            self.heard[event.session_id] = self.now
        else:
            expired = []
        effects = expired + self.core.handle(event, self.now)
        for effect in effects:
            self.check(effect)
        return effects

    def check(self, effect: Effect) -> None:
        if isinstance(effect, Granted):
            self.check_grant(effect)
        elif isinstance(effect, Queued):
            assert self.acquiring is not None
            assert all(want.ticket < effect.ticket for want in self.waiting)
            self.waiting.append(Want(effect.session_id, effect.request_id, self.acquiring.tokens, effect.ticket))
        elif isinstance(effect, Rejected):
            if effect.reason is RejectReason.QUEUE_FULL:
                mine = sum(want.session == effect.session_id for want in self.waiting)
                assert len(self.waiting) >= MAX_QUEUED or mine >= MAX_QUEUED_PER_CLIENT
            self.forget(effect.session_id, effect.request_id)
        elif isinstance(effect, Revoked):
            held = self.held.pop(effect.lease)
            assert held.holder == effect.session_id
            if held.bound:
                silence = self.now - self.heard[held.holder]
                assert silence >= TIMING.executor_silence, "a bound lease was freed while its executor was alive"
        elif isinstance(effect, SessionEnded):
            self.connected.discard(effect.session_id)
            self.waiting = [want for want in self.waiting if want.session != effect.session_id]
        elif isinstance(effect, Welcomed):
            assert effect.unknown == ()

    def check_grant(self, effect: Granted) -> None:
        assert effect.session_id in self.connected
        waiting = next((w for w in self.waiting if w.request_id == effect.request_id), None)
        eligible = [want for want in self.waiting if want.session in self.connected]
        if waiting is not None:
            assert waiting is min(eligible, key=lambda want: want.ticket), "granted out of ticket order"
            self.waiting.remove(waiting)
            tokens = waiting.tokens
        else:
            assert self.acquiring is not None
            assert not eligible, "granted past the queue"
            tokens = self.acquiring.tokens
        self.held[effect.lease] = Held(effect.lease, tokens, effect.session_id, effect.session_id, effect.request_id)
        assert sum(held.tokens for held in self.held.values()) <= self.limit, "the limit was exceeded"

    def forget(self, session: str, request_id: str) -> None:
        self.waiting = [w for w in self.waiting if (w.session, w.request_id) != (session, request_id)]

    @rule(
        name=st.sampled_from(CLIENTS + EXECUTORS),
        tokens=st.sampled_from([1, 1, 1, 2, 3]),
        timeout=st.sampled_from([0.5, 3.0, 60.0]),
    )
    def acquire(self, name: str, tokens: int, timeout: float) -> None:
        if name not in self.connected:
            return
        self.serial += 1
        self.acquiring = Acquire(name, f"r{self.serial}", tokens=tokens, queue_timeout=timeout)
        effects = self.send(self.acquiring)
        repeated = self.core.handle(self.acquiring, self.now)
        if effects and not isinstance(effects[-1], Rejected):
            assert type(repeated[-1]) is type(effects[-1]), "a repeat is answered like the original"
        self.acquiring = None

    @rule(name=st.sampled_from(CLIENTS), tokens=st.lists(st.sampled_from([1, 2, 3]), min_size=2, max_size=5))
    def burst(self, name: str, tokens: list[int]) -> None:
        for each in tokens:
            self.acquire(name, each, 60.0)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = [(w.session, w.request_id) for w in self.waiting if w.session in self.connected]
        known += [(h.client, h.request_id) for h in self.held.values() if h.client in self.connected]
        if not known:
            return
        name, request_id = data.draw(st.sampled_from(sorted(known)))
        self.forget(name, request_id)
        for held in [h for h in self.held.values() if h.request_id == request_id and not h.bound]:
            del self.held[held.lease]
        self.send(Cancel(name, request_id))

    @rule(data=st.data(), executor=st.sampled_from(EXECUTORS))
    def bind(self, data: st.DataObject, executor: str) -> None:
        if not self.held or executor not in self.connected:
            return
        self.send(Tick())
        if not self.held or executor not in self.connected:
            return
        held = data.draw(st.sampled_from(sorted(self.held.values(), key=lambda held: held.lease)))
        wrong = self.send(Bind(executor, held.lease, "somebody-else"))[-1]
        assert isinstance(wrong, BindAnswered)
        assert wrong.status is BindStatus.WRONG_CLIENT
        answer = self.send(Bind(executor, held.lease, held.client))[-1]
        assert isinstance(answer, BindAnswered)
        if held.bound and held.holder != executor:
            assert (answer.status, answer.owner) == (BindStatus.BOUND_ELSEWHERE, held.holder)
        else:
            assert answer.status is BindStatus.BOUND
            held.bound, held.holder = True, executor

    @rule(data=st.data(), by_holder=st.booleans())
    def release(self, data: st.DataObject, by_holder: bool) -> None:
        self.send(Tick())
        candidates = [held for held in self.held.values() if held.holder in self.connected]
        if not candidates:
            return
        held = data.draw(st.sampled_from(sorted(candidates, key=lambda held: held.lease)))
        if by_holder:
            del self.held[held.lease]
            self.send(Release(held.holder, held.lease))
        elif held.bound and held.client in CLIENTS:
            before = dict(self.held)
            self.send(Release(held.client, held.lease))
            assert held.lease in self.held, "a client freed a bound lease"
            assert set(before) <= set(self.held)

    @rule(name=st.sampled_from(CLIENTS + EXECUTORS))
    def disconnect(self, name: str) -> None:
        if name in self.connected:
            bound = {held.lease for held in self.held.values() if held.bound}
            self.connected.discard(name)
            self.send(Disconnect(name))
            assert bound <= set(self.held), "a disconnect freed a bound lease"

    @rule(count=st.integers(1, 6))
    def drain(self, count: int) -> None:
        """Holders release, oldest lease first."""
        for _ in range(count):
            held = min(
                (h for h in self.held.values() if h.holder in self.connected), default=None, key=lambda h: h.lease
            )
            if held is not None:
                del self.held[held.lease]
                self.send(Release(held.holder, held.lease))

    @rule(name=st.sampled_from(CLIENTS), other=st.sampled_from(CLIENTS))
    def blip(self, name: str, other: str) -> None:
        """A stream is lost and comes back while another client asks."""
        self.disconnect(name)
        self.acquire(other, 1, 60.0)
        self.client_reconnects(name, True)

    @rule(name=st.sampled_from(CLIENTS), keep=st.booleans())
    def client_reconnects(self, name: str, keep: bool) -> None:
        self.advance(0.0)
        self.hello(name, SessionKind.CLIENT, keep=keep)

    @rule(name=st.sampled_from(EXECUTORS), keep=st.booleans())
    def executor_reconnects(self, name: str, keep: bool) -> None:
        self.advance(0.0)
        self.hello(name, SessionKind.EXECUTOR, keep=keep)

    @rule(name=st.sampled_from(EXECUTORS))
    def heartbeat(self, name: str) -> None:
        if name in self.connected:
            self.send(Heartbeat(name, 1))

    @rule(seconds=st.sampled_from([0.0, 0.2, 1.0, 1.6, 5.1]))
    def advance(self, seconds: float) -> None:
        """Time passes; those that are gone for longer than the grace, or silent for too long, lose what they had."""
        self.now += seconds
        self.drop_the_gone()
        self.send(Tick())

    def drop_the_gone(self) -> None:
        """Asks the core itself who is left: `invariant` compares the books, this only drops the ended sessions'
        waiters, whose end nobody is told."""
        deadline = self.core.next_deadline()
        if deadline is None or deadline > self.now:
            return
        before = {want.request_id for want in self.waiting if want.session not in self.connected}
        for name in {want.session for want in self.waiting if want.request_id in before}:
            gone_at = self.gone_at(name)
            if gone_at is not None and gone_at + TIMING.grace <= self.now:
                self.waiting = [want for want in self.waiting if want.session != name]

    def gone_at(self, name: str) -> float | None:
        session = self.core._ledger.sessions.get(name)
        return None if session is None or session.connected else session.gone_at

    @rule(limit=st.sampled_from([3, 4, 6]))
    def configure(self, limit: int) -> None:
        before = set(self.held)
        self.send(Tick())
        before &= set(self.held)
        self.limit = limit
        limits = BucketLimits("code", limit, MAX_QUEUED, MAX_QUEUED_PER_CLIENT, 5.0)
        self.send(Configure(replace(limits, version=99), self.version))
        self.version += 1
        assert before <= set(self.held), "lowering the limit revoked a lease"

    @invariant()
    def books_agree(self) -> None:
        statistics = self.core.statistics(self.now)
        bucket = statistics.bucket("code")
        assert bucket.held == sum(held.tokens for held in self.held.values())
        assert bucket.bound == sum(held.tokens for held in self.held.values() if held.bound)
        assert bucket.queued == len(self.waiting) <= MAX_QUEUED
        assert sorted(self.held) == [lease.lease_id for lease in self.core.leases()]
        ledger = self.core._ledger
        listed = [request.ticket for request in waiting_for(ledger, ledger.buckets["code"])]
        assert sorted(listed) == sorted(want.ticket for want in self.waiting)

    @invariant()
    def works_whenever_it_can(self) -> None:
        eligible = [want for want in self.waiting if want.session in self.connected]
        if eligible:
            head = min(eligible, key=lambda want: want.ticket)
            assert sum(held.tokens for held in self.held.values()) + head.tokens > self.limit, "a fitting head waits"

    def teardown(self) -> None:
        """Everybody leaves, and nothing stays."""
        for name in sorted(self.connected):
            self.connected.discard(name)
            self.core.handle(Disconnect(name), self.now)
        while (deadline := self.core.next_deadline()) is not None:
            self.now = max(self.now, deadline)
            self.core.handle(Tick(), self.now)
        statistics = self.core.statistics(self.now)
        assert (statistics.held, statistics.bound, statistics.queued, statistics.sessions) == (0, 0, 0, 0)


TestLimiterCore = LimiterMachine.TestCase
TestLimiterCore.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
