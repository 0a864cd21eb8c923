"""The rules of the core, one by one."""

from __future__ import annotations

import pytest

from limiter.core import BindStatus, LeaseId, RejectReason, SessionKind, Ticket
from limiter.core.deadlines import NEVER, Deadlines
from limiter.core.effects import (
    BindAnswered,
    Rejected,
    Revoked,
)
from limiter.core.events import (
    Acquire,
    Bind,
    Cancel,
    Event,
    Hello,
    Release,
    Tick,
)
from tests.limiter.cores import acquire, granted, lease_of, make_core, only


def test_ids_sort_by_epoch_first_and_survive_their_text_form() -> None:
    assert Ticket(1, 99) < Ticket(2, 1) < Ticket(2, 2)
    assert LeaseId.parse(str(LeaseId(12, 34))) == LeaseId(12, 34)
    for bad in ("", "12", "1.x", "-1.2", "1.2.3", "١.٢"):
        with pytest.raises(ValueError, match=r"EPOCH\.SEQ"):
            LeaseId.parse(bad)


def test_queue_bounds_answer_with_a_retry_delay() -> None:
    core = make_core(1, max_queued=12)
    for number in range(11):
        acquire(core, "c", f"r{number}")
    mine = only(Rejected, acquire(core, "c", "one more"))
    assert mine.reason is RejectReason.QUEUE_FULL
    assert mine.retry_after > 0
    acquire(core, "d", "r0")
    acquire(core, "d", "r1")
    everybody = only(Rejected, acquire(core, "d", "r2"))
    assert everybody.reason is RejectReason.QUEUE_FULL
    assert "12 requests wait" in everybody.message
    assert core.statistics(0.0).queued == 12


def test_unbound_grant_ends_at_start_by_and_its_client_is_told() -> None:
    core = make_core(1)
    lease = lease_of(acquire(core, "c", "a"))
    acquire(core, "d", "b")
    effects = core.handle(Tick(), 5.0)
    assert only(Revoked, effects).lease == lease
    assert granted(effects) == ["b"]
    assert only(BindAnswered, core.handle(Bind("x", lease, "c"), 5.0)).status is BindStatus.UNKNOWN_LEASE


def test_bind_after_start_by_is_refused_even_when_no_tick_came() -> None:
    core = make_core(1)
    lease = lease_of(acquire(core, "c", "a"))
    assert only(BindAnswered, core.handle(Bind("x", lease, "c"), 5.0)).status is BindStatus.UNKNOWN_LEASE


def test_bind_is_idempotent_and_refuses_everybody_else() -> None:
    core = make_core(1)
    core.handle(Hello("y", SessionKind.EXECUTOR, "second"), 0.0)
    lease = lease_of(acquire(core, "c", "a"))
    statuses = [
        only(BindAnswered, core.handle(event, 0.0)).status
        for event in (
            Bind("x", lease, "d"),
            Bind("x", LeaseId(4, 1), "c"),
            Bind("x", LeaseId(5, 99), "c"),
            Bind("d", lease, "c"),
            Bind("x", lease, "c"),
            Bind("x", lease, "c"),
        )
    ]
    assert statuses == [
        BindStatus.WRONG_CLIENT,
        BindStatus.WRONG_EPOCH,
        BindStatus.UNKNOWN_LEASE,
        BindStatus.UNKNOWN_LEASE,
        BindStatus.BOUND,
        BindStatus.BOUND,
    ]
    elsewhere = only(BindAnswered, core.handle(Bind("y", lease, "c"), 0.0))
    assert (elsewhere.status, elsewhere.owner) == (BindStatus.BOUND_ELSEWHERE, "executor")
    assert core.statistics(0.0).bound == 1


def test_events_of_one_instant_are_answered_as_one_by_one() -> None:
    lease = LeaseId(5, 1)
    events: list[Event] = [
        Acquire("c", "a"),
        Acquire("d", "b", queue_timeout=1.0),
        Release("c", lease),
        Bind("x", lease, "c"),
    ]
    events += [Acquire("c", "nowhere", bucket="no"), Cancel("d", "b"), Acquire("c", "e"), Tick()]
    alone, together = make_core(1), make_core(1)
    later: list[Event] = [Acquire("d", "late", queue_timeout=2.0), Release("c", LeaseId(5, 3))]
    # The grant of "e" has run out by then, which is told before what happens at that instant.
    for now, instant in ((0.5, events), (9.0, later)):
        one_by_one = [effect for event in instant for effect in alone.handle(event, now)]
        assert together.handle_all(instant, now) == one_by_one
        assert alone.statistics(now) == together.statistics(now)
    assert isinstance(one_by_one[0], Revoked)


def test_stale_deadlines_do_not_pile_up() -> None:
    core = make_core(1)
    for number in range(5000):
        lease = lease_of(acquire(core, "c", f"r{number}", number / 1e4))
        core.handle(Release("c", lease), number / 1e4)
    assert len(core._ledger.deadlines) < 200


class Thing:
    deadline = NEVER


def test_deadlines_come_in_order_and_only_once() -> None:
    deadlines: Deadlines[Thing] = Deadlines()
    things = [Thing(), Thing(), Thing()]
    for thing, when in zip(things, (3.0, 1.0, 2.0), strict=True):
        deadlines.set(thing, when)
    deadlines.set(things[1], 5.0)
    deadlines.clear(things[2])
    assert deadlines.pop_due(2.9) is None
    assert [deadlines.pop_due(9.0), deadlines.pop_due(9.0), deadlines.pop_due(9.0)] == [things[0], things[1], None]
    assert deadlines.next() is None


def test_deadlines_of_several_types_come_in_one_order() -> None:
    class Other(Thing):
        pass

    deadlines: Deadlines[Thing] = Deadlines()
    things = [Thing(), Other(), Thing(), Other()]
    for thing, when in zip(things, (2.0, 1.0, 1.0, 2.0), strict=True):
        deadlines.set(thing, when)
    assert (deadlines.next(), deadlines.due(0.9), deadlines.due(1.0)) == (1.0, False, True)
    order = [things.index(each) for each in iter(lambda: deadlines.pop_due(2.0), None)]
    assert order == [1, 2, 0, 3]  # at the same instant the one set first
    assert not deadlines.due(9.0)


def test_statistics_show_rates_and_waits() -> None:
    core = make_core(1)
    lease = lease_of(acquire(core, "c", "a"))
    core.handle(Bind("x", lease, "c"), 0.0)
    acquire(core, "c", "b")
    core.handle(Release("x", lease), 4.0)
    bucket = core.statistics(4.0).bucket()
    assert (bucket.granted_total, bucket.released_total, bucket.held, bucket.queued) == (2, 1, 1, 0)
    assert (bucket.wait_p50, bucket.wait_p99) == (4.0, 4.0)
    assert bucket.grants_per_s == pytest.approx(0.5)
    acquire(core, "c", "c", 4.0)
    assert core.statistics(6.0).bucket().oldest_wait == 2.0
