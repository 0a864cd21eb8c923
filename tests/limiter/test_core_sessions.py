"""The rules of the core for sessions: reconnection, hello, silence, restart, unary calls."""

from __future__ import annotations

import pytest

from limiter.core import LeaseId, RejectReason, SessionKind, Ticket, Timing
from limiter.core.effects import (
    Granted,
    HeartbeatAcked,
    Queued,
    Refused,
    Rejected,
    Released,
    SessionEnded,
    Welcomed,
)
from limiter.core.events import (
    Acquire,
    Bind,
    Cancel,
    Disconnect,
    Heartbeat,
    HeldLease,
    Hello,
    Release,
    Tick,
)
from limiter.core.waiting import WaitQueue
from tests.limiter.cores import acquire, granted, lease_of, listed, make_core, only, unknown


def test_late_hello_of_a_connection_that_was_given_up_changes_nothing() -> None:
    core = make_core(1)
    core.handle(Hello("x", SessionKind.EXECUTOR, connection=2), 0.0)
    lease = lease_of(acquire(core, "c", "a"))
    core.handle(Bind("x", lease, "c"), 0.0)
    (effect,) = core.handle(Hello("x", SessionKind.EXECUTOR, connection=1), 0.5)
    assert isinstance(effect, Refused)
    assert core.statistics(0.5).held == 1, "the late hello omits what was bound since"
    assert core.handle(Heartbeat("x", 9), 0.5) == [HeartbeatAcked("x", 9)]
    held = (HeldLease(lease, "code", "c"),)
    assert only(Welcomed, core.handle(Hello("x", SessionKind.EXECUTOR, held=held, connection=3), 1.0)).unknown == ()
    assert core.statistics(1.0).held == 1


def test_lost_grant_is_found_by_the_hello_and_granted_again_from_the_front() -> None:
    core = make_core(1)
    hold = lease_of(acquire(core, "d", "hold"))
    ticket = only(Queued, acquire(core, "c", "a")).ticket
    acquire(core, "d", "later")
    lost = lease_of(core.handle(Release("d", hold), 0.0))
    core.handle(Disconnect("c"), 0.1)
    effects = core.handle(Hello("c", SessionKind.CLIENT, queued=(Acquire("c", "a", ticket=ticket),)), 0.2)
    assert isinstance(effects[0], Welcomed)
    assert granted(effects) == ["a"]
    assert lease_of(effects) != lost
    assert core.statistics(0.2).held == 1


def test_requests_that_come_back_again_and_again_leave_no_old_places_behind() -> None:
    core = make_core(1)
    acquire(core, "d", "first")
    for name in ("a", "b"):
        acquire(core, "c", name)
    back = tuple(Acquire("c", name) for name in ("a", "b"))
    for number in range(500):
        core.handle(Disconnect("c"), number / 1e3)
        core.handle(Hello("c", SessionKind.CLIENT, queued=back), number / 1e3)
    assert listed(core) == ["a", "b"]
    queue = core._ledger.buckets["code"].queue
    assert isinstance(queue, WaitQueue)
    assert len(queue._heap) < 100


def test_hello_frees_what_it_omits_and_names_what_is_unknown() -> None:
    core = make_core(2)
    acquire(core, "c", "omitted")
    kept = lease_of(acquire(core, "c", "kept"))
    acquire(core, "c", "waits")
    held = (HeldLease(kept, "code", "c"), HeldLease(LeaseId(5, 77), "code", "c"))
    welcomed = only(Welcomed, core.handle(Hello("c", SessionKind.CLIENT, held=held), 0.0))
    assert welcomed == Welcomed("c", held[1:])
    assert (core.statistics(0.0).held, core.statistics(0.0).queued) == (1, 0)


def test_client_hello_may_list_a_lease_that_an_executor_has_bound() -> None:
    core = make_core(1)
    lease = lease_of(acquire(core, "c", "a"))
    core.handle(Bind("x", lease, "c"), 0.0)
    hello = Hello("c", SessionKind.CLIENT, held=(HeldLease(lease, "code", "c"),))
    assert unknown(core.handle(hello, 0.0)) == []
    assert core.statistics(0.0).bound == 1


def test_silent_executor_is_counted_until_its_work_has_provably_ended() -> None:
    core = make_core(1)
    lease = lease_of(acquire(core, "c", "a"))
    core.handle(Bind("x", lease, "c"), 0.0)
    assert only(HeartbeatAcked, core.handle(Heartbeat("x", 3), 2.0)).number == 3
    core.handle(Disconnect("x"), 2.5)
    core.handle(Acquire("d", "b"), 2.5)
    end = 2.0 + 6.0 * 1.02 + 1.0
    assert granted(core.handle(Tick(), end - 0.01)) == []
    effects = core.handle(Tick(), end)
    assert only(SessionEnded, effects).session_id == "x"
    assert granted(effects) == ["b"]
    assert core.timing.executor_ttl < core.timing.executor_silence


def test_new_limiter_adopts_what_an_executor_runs_and_keeps_the_order_of_old_tickets() -> None:
    core = make_core(2, epoch=9, follows=True)
    running = tuple(HeldLease(LeaseId(5, number), "code", "c") for number in (1, 2, 3))
    assert unknown(core.handle(Hello("x", SessionKind.EXECUTOR, held=running), 0.0)) == []
    assert core.statistics(0.0).held == 3
    acquire(core, "d", "new")
    old = (Acquire("c", "second", ticket=Ticket(5, 8)), Acquire("c", "first", ticket=Ticket(5, 7)))
    core.handle(Hello("c", SessionKind.CLIENT, queued=old), 0.0)
    order = granted(core.handle(Tick(), 1.0))
    for held in running:
        order += granted(core.handle(Release("x", held.lease), 1.0))
    assert order == ["first", "second"]
    assert listed(core) == ["new"]


@pytest.mark.parametrize(("now", "ticket"), [(0.0, Ticket(99, 1)), (2.0, Ticket(4, 1)), (2.0, Ticket(5, 1))])
def test_ticket_that_was_never_issued_or_comes_late_is_replaced_by_a_fresh_one(now: float, ticket: Ticket) -> None:
    core = make_core(1, follows=True)
    core.handle(Hello("x", SessionKind.EXECUTOR), 0.0)
    acquire(core, "d", "a")
    acquire(core, "d", "b")
    core.handle(Tick(), 1.0)
    effects = core.handle(Hello("c", SessionKind.CLIENT, queued=(Acquire("c", "forged", ticket=ticket),)), now + 1.0)
    assert only(Queued, effects).ticket == Ticket(5, 3)
    assert listed(core) == ["b", "forged"]


def test_ticket_of_an_earlier_limiter_counts_once() -> None:
    core = make_core(1, follows=True)
    acquire(core, "d", "a")
    old = Ticket(4, 1)
    core.handle(Acquire("c", "first", ticket=old), 0.0)
    core.handle(Acquire("c", "second", ticket=old), 0.0)
    assert listed(core) == ["first", "a", "second"]
    core.handle(Cancel("c", "first"), 0.0)
    core.handle(Acquire("c", "third", ticket=old), 0.0)
    assert listed(core) == ["third", "a", "second"], "it was never granted"


@pytest.mark.xfail(strict=True, reason="a proof shows that a place was given, and not that it was used since")
def test_a_place_that_was_used_before_a_restart_gains_nothing_after_it() -> None:
    before = make_core(1, epoch=4)
    used = only(Granted, acquire(before, "c", "used")).ticket
    waits = only(Queued, acquire(before, "d", "waits")).ticket
    after = make_core(1, follows=True)
    after.handle(Acquire("d", "waits", ticket=waits), 0.0)
    after.handle(Acquire("c", "again", ticket=used), 0.0)
    assert listed(after) == ["waits", "again"]


def test_executor_that_no_earlier_limiter_had_let_in_runs_nothing() -> None:
    core = make_core(2, follows=True)
    held = (HeldLease(LeaseId(4, 1), "code", "c"),)
    assert unknown(core.handle(Hello("y", SessionKind.EXECUTOR, held=held), 0.0)) == [LeaseId(4, 1)]
    assert unknown(core.handle(Hello("x", SessionKind.EXECUTOR, held=held), 0.0)) == []
    core.handle(Tick(), 1.0)
    late = core.handle(Hello("x", SessionKind.EXECUTOR, held=(*held, HeldLease(LeaseId(4, 2), "code", "c"))), 1.1)
    assert unknown(late) == [LeaseId(4, 2)]
    assert core.statistics(1.1).held == 1


def test_grant_that_was_lost_leaves_its_place_to_the_same_request() -> None:
    core = make_core(1)
    acquire(core, "c", "a")
    acquire(core, "d", "b")
    core.handle(Disconnect("c"), 0.1)
    assert granted(core.handle(Hello("c", SessionKind.CLIENT, queued=(Acquire("c", "a"),)), 0.2)) == ["a"]
    assert listed(core) == ["b"]


def test_unary_session_lives_as_long_as_its_requests() -> None:
    core = make_core(1)
    lease = lease_of(core.handle(Acquire("unary:me", "a", unary=True, start_by=60.0), 0.0))
    assert core.statistics(0.0).sessions == 4
    core.handle(Hello("x", SessionKind.EXECUTOR, "executor"), 59.0)
    core.handle(Bind("x", lease, "unary:me"), 59.0)
    core.handle(Release("x", lease), 60.0)
    assert core.statistics(60.0).sessions == 3


def test_unary_release_that_overtakes_its_acquire_wins() -> None:
    core = make_core(1)
    core.handle(Cancel("unary:me", "a"), 0.0)
    rejected = only(Rejected, core.handle(Acquire("unary:me", "a", unary=True), 0.0))
    assert rejected.reason is RejectReason.CANCELLED
    core.handle(Tick(), 61.0)
    assert len(core._ledger.tombstones) == 0
    assert granted(core.handle(Acquire("unary:me", "a", unary=True), 61.0)) == ["a"]
    assert only(Released, core.handle(Cancel("unary:me", "a"), 61.0)).released is True
    assert core.statistics(61.0).sessions == 2


def test_bounds_on_sessions_and_kinds_refuse_a_hello() -> None:
    core = make_core(timing=Timing(max_sessions=2))
    full = only(Refused, core.handle(Hello("z", SessionKind.CLIENT), 0.0))
    assert full.message == "2 sessions of kind client are open, which is all that may"
    assert only(Refused, core.handle(Hello("x", SessionKind.CLIENT), 0.0)).retry_after == 0
    for name in "mn":
        core.handle(Acquire(f"unary:{name}", "a", unary=True), 0.0)
    assert "2 callers" in only(Rejected, core.handle(Acquire("unary:o", "a", unary=True), 0.0)).message
    assert only(Welcomed, core.handle(Hello("y", SessionKind.EXECUTOR), 0.0)), "nobody shuts executors out"
    core.handle(Cancel("unary:m", "a"), 0.0)
    assert granted(core.handle(Acquire("unary:o", "a", unary=True), 0.0)) == ["a"] or "a" in listed(core)


def test_requests_of_sessions_that_never_said_hello_are_refused() -> None:
    core = make_core()
    assert only(Rejected, acquire(core, "stranger", "a")).reason is RejectReason.INVALID
    core.handle(Disconnect("c"), 0.0)
    assert only(Rejected, acquire(core, "c", "a")).reason is RejectReason.INVALID
