"""Thousands of leases and requests in a hello, or in another frame: read in steps, with others served between."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from fairbox.clock import MonotonicClock
from fairbox.testing import ManualClock
from limiter.core import SLICE, BucketLimits, LeaseId, LimiterCore, Member, SessionKind, Ticket
from limiter.core.effects import Effect, HeartbeatAcked, Queued, Rejected, Revoked, Unread, Welcomed
from limiter.core.events import (
    Acquire,
    Disconnect,
    Event,
    Heartbeat,
    HeldLease,
    Hello,
    ReadOn,
    Release,
    Returning,
    Tick,
)
from limiter.server.core_runner import CoreRunner
from limiter.server.peer import PeerStream
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.cores import granted, listed, make_core, only
from tests.limiter.servers import raw_hello
from tests.limiter.test_core_runner import hello_frame

MANY = 9_000
_CALLS_A_LOOK = 150
"""Most calls, of Python and of C, that a look at one lease or request costs. A step also puts what waited back, all of
it at once, for 5 calls each."""
RUNS = tuple(HeldLease(LeaseId(4, seq), "code", "c") for seq in range(1, MANY + 1))


def held_and_asked(core: LimiterCore) -> tuple[int, int]:
    ledger = core._ledger
    return len(ledger.leases), sum(len(each.requests) for each in ledger.sessions.values())


def steps(core: LimiterCore, event: Event, now: float, between: Callable[[], None] = lambda: None) -> list[Effect]:
    """Does all of it; `between` is called after each step but the last. What a step may do is bounded: counted are
    calls and what the books have more or less."""
    told: list[Effect] = []
    session = getattr(event, "session_id", "")
    while True:
        calls, before = (
            0,
            (len(core._ledger.leases), sum(len(each.requests) for each in core._ledger.sessions.values())),
        )

        def count(frame: object, kind: str, argument: object) -> None:
            nonlocal calls
            calls += kind in ("call", "c_call")

        sys.setprofile(count)
        effects = core.handle(event, now)
        sys.setprofile(None)
        assert max(abs(one - other) for one, other in zip(before, held_and_asked(core), strict=True)) <= SLICE
        assert calls <= _CALLS_A_LOOK * SLICE
        told += [effect for effect in effects if not isinstance(effect, Unread)]
        if Unread(session) not in effects:
            return told
        event = ReadOn(session)
        between()


@pytest.mark.parametrize("adopts", [True, False])
def test_leases_are_counted_in_steps_and_nothing_is_granted_before_the_last(adopts: bool) -> None:
    """Leases are adopted in a recovery, which then ends, or reported as unknown."""
    core = make_core(MANY + 1, follows=adopts, max_queued=10)
    core.handle(Acquire("d", "waits", tokens=2), 1.0)
    seen: list[bool] = []

    def between() -> None:
        if adopts:
            assert granted(core.handle(Tick(), 1.0)) == []
            assert core.handle(Heartbeat("x", 3), 1.0) == [], "what it runs is not counted yet"
        seen.append(core.recovering)

    told = steps(core, Hello("x", SessionKind.EXECUTOR, held=RUNS), 1.0, between)
    assert seen == [adopts] * len(seen)
    assert len(seen) >= 2 * MANY // SLICE
    assert (core.statistics(1.0).bound, core.recovering) == (MANY * adopts, False)
    lost = [held.lease for held in only(Welcomed, told).unknown]
    assert len(lost) <= SLICE
    lost += [effect.lease for effect in told if isinstance(effect, Revoked)]
    assert lost == ([] if adopts else [held.lease for held in RUNS])
    assert granted(core.handle(Release("x", LeaseId(4, 1)), 2.0)) == (["waits"] if adopts else [])
    assert steps(core, Hello("x", SessionKind.EXECUTOR, connection=1), 3.0)[0] == Welcomed("x")
    assert core.statistics(3.0).bound == 0


@pytest.mark.parametrize("follows", [True, False])
def test_requests_come_back_in_steps_and_in_their_order(follows: bool) -> None:
    core = make_core(1, follows=follows, max_queued=2 * MANY, max_queued_per_client=MANY)
    core.handle(Hello("x", SessionKind.EXECUTOR), 0.0)
    core.handle(Acquire("d", "between"), 0.0)
    tickets = [Ticket(4, seq) if follows else None for seq in range(1, MANY + 1)]
    asks = tuple(Acquire("c", str(seq), ticket=ticket) for seq, ticket in enumerate(tickets))
    told = steps(core, Hello("c", SessionKind.CLIENT, queued=asks[::-1]), 0.5)
    assert isinstance(told[0], Welcomed)
    places = [effect.request_id for effect in told if isinstance(effect, Queued)]
    assert (len(places), core.recovering) == ((0, True) if follows else (MANY, False))
    assert not [effect for effect in told if isinstance(effect, Rejected)]
    order = [each.request_id for each in asks]
    assert listed(core) == ([*order, "between"] if follows else order[::-1])
    core.handle(Disconnect("c"), 0.6)
    again = [each for each in asks if int(each.request_id) % 2]
    inside: list[list[str]] = []
    steps(core, Hello("c", SessionKind.CLIENT, queued=tuple(again)), 0.7, lambda: inside.append(listed(core)))
    kept = [each.request_id for each in again]
    assert listed(core) == ([*kept, "between"] if follows else kept[::-1])
    rest = ["between"] if follows else []
    assert {tuple(each) for each in inside} <= {tuple(rest), tuple(listed(core))}, "all return to their places at once"


@pytest.mark.parametrize("end", ["dies", "comes again"])
def test_hello_that_is_not_read_to_its_end_leaves_nothing_but_what_time_ends(end: str) -> None:
    core = make_core(MANY + 1, follows=True, max_queued=10)
    core.handle(Acquire("d", "waits"), 0.0)
    hello = Hello("x", SessionKind.EXECUTOR, held=RUNS, connection=1)
    core.handle(hello, 1.0)
    while not core._ledger.leases:
        core.handle(ReadOn("x"), 1.0)
    core.handle(Disconnect("x"), 1.0)
    assert core.handle(ReadOn("x"), 1.0) == []
    assert 0 < len(core._ledger.leases) < MANY
    assert core.handle(Returning("x", 7), 2.0) == [HeartbeatAcked("x", 7)], "once, and the recovery waits for it"
    assert core.handle(Returning("x", 8), 2.5) == []
    if end == "comes again":
        steps(core, Hello("x", SessionKind.EXECUTOR, held=RUNS, connection=2), 3.0)
        assert (core.statistics(3.0).bound, core.recovering) == (MANY, False)
        return
    silent = core.timing.executor_silence
    assert granted(core.handle(Tick(), 1.9 + silent)) == []
    assert granted(core.handle(Tick(), 2.1 + silent)) == ["waits"]
    assert (core.statistics(9.0).bound, core._ledger.recovery.reading, list(core._ledger.sessions)) == (
        0,
        0,
        ["c", "d"],
    )


async def test_heartbeats_of_others_and_probes_have_their_turn_between_two_steps() -> None:
    """Over a runner, whose streams are served in the order in which the loop has work: turns are counted, and no time
    passes, however long they take."""
    clock = ManualClock()
    frame = pb.SessionRequest(heartbeat=1, hello=raw_hello("x", pb.SESSION_KIND_EXECUTOR))
    for seq in range(MANY, 2 * MANY):
        lease = frame.hello.held.add(tokens=1).lease
        lease.bucket, lease.epoch, lease.seq, lease.client_session_id = "code", 1, seq, "c"
    roster = [Member(frame.hello.session_id, ""), Member(hello_frame(0).hello.session_id, "")]
    runner = CoreRunner(
        LimiterCore(2, [BucketLimits("code", 3 * MANY)], now=clock.now(), roster=roster, keeps_roster=True), clock
    )
    other, long = PeerStream(runner), PeerStream(runner)
    await other.open(hello_frame(0))
    opening = asyncio.create_task(long.open(frame))
    turns = 0
    while not opening.done():
        turns += 1
        before = len(runner.core._ledger.leases)
        await asyncio.sleep(0)
        assert len(runner.core._ledger.leases) - before <= SLICE
        await other.receive(pb.SessionRequest(heartbeat=turns))
    await opening
    assert turns > 2 * MANY // SLICE
    first, answers = await long.next_frame(), await other.next_frame()
    assert first is not None
    assert answers is not None
    assert (first.HasField("welcome"), len(first.welcome.unknown), first.heartbeat_ack) == (True, 0, 1)
    assert runner.core.statistics(clock.now()).bound == MANY + 250
    gone = asyncio.create_task(PeerStream(runner).open(frame))
    await asyncio.sleep(0)
    while not runner._unread:
        await asyncio.sleep(0)
    gone.cancel()
    runner.close()
    while runner._unread:
        await asyncio.sleep(0)


async def test_a_long_frame_leaves_others_their_turns() -> None:
    """Requests that can't be taken, which are the dearest, and cancels of nothing: other streams go on between them."""
    runner = CoreRunner(LimiterCore(1, [BucketLimits("code", 1)], now=0.0), MonotonicClock())
    other, long = PeerStream(runner), PeerStream(runner)
    await other.open(hello_frame(0))
    await long.open(hello_frame(1))
    frame = pb.SessionRequest(
        acquires=[pb.Acquire(request_id=str(i), bucket="nowhere") for i in range(MANY)],
        cancels=[pb.Cancel(request_id=str(i)) for i in range(MANY)],
    )
    receiving = asyncio.create_task(long.receive(frame))
    turns = 0
    while not receiving.done():
        turns += 1
        await other.receive(pb.SessionRequest(heartbeat=turns))
        await asyncio.sleep(0)
    await receiving
    assert turns >= 2 * MANY // SLICE
    rejected = 0
    while rejected < MANY:
        answer = await long.next_frame()
        assert answer is not None
        rejected += len(answer.rejects)
