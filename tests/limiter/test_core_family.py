"""Leases within leases: granted within the parent's tokens, one child at a time, counted once."""

from __future__ import annotations

from limiter.core import (
    BindStatus,
    BucketLimits,
    LeaseId,
    LimiterCore,
    Member,
    RejectReason,
    ReleaseOutcome,
    SessionKind,
    Ticket,
    Timing,
)
from limiter.core.effects import BindAnswered, Effect, Granted, Queued, Rejected, Revoked
from limiter.core.events import (
    Acquire,
    Bind,
    Cancel,
    Configure,
    Disconnect,
    Heartbeat,
    HeldLease,
    Hello,
    Release,
    Revoke,
    Tick,
)
from tests.limiter.cores import acquire, granted, lease_of, make_core, only

CODE = BucketLimits("code", 4)


def child(core: LimiterCore, request: str, parent: LeaseId, *, session: str = "d", tokens: int = 1) -> list[Effect]:
    """A child of a lease that was granted to `c`."""
    return core.handle(Acquire(session, request, tokens=tokens, parent=parent, parent_client="c"), 0.0)


def held(core: LimiterCore) -> tuple[int, int]:
    """Held and bound, checked against the leases."""
    bucket = core.statistics(0.0).bucket()
    assert bucket.held == sum(info.tokens for info in core.leases(0.0))
    assert bucket.held == sum(session.held for session in core.sessions(0.0, 99))
    return bucket.held, bucket.bound


def nothing_left(core: LimiterCore) -> bool:
    families = core._ledger.families
    return held(core) == (0, 0) and not families.lines and not families._families


def test_a_parent_that_waits_for_its_child_does_not_deadlock() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    assert granted(acquire(core, "c", "other")) == []
    first = lease_of(child(core, "child", parent))
    assert held(core) == (1, 0)
    assert granted(core.handle(Release("d", first), 0.0)) == []
    assert granted(core.handle(Release("c", parent), 0.0)) == ["other"]


def test_one_child_at_a_time_others_wait_in_their_order() -> None:
    core = make_core(2)
    parent = lease_of(acquire(core, "c", "parent"))
    lease = lease_of(child(core, "one", parent))
    assert [only(Queued, child(core, name, parent)).position for name in ("two", "three", "four")] == [0, 1, 2]
    assert only(Queued, child(core, "four", parent)).position == 2, "a repeat tells the position of now"
    core.handle(Cancel("d", "three"), 0.0)
    order = []
    while grants := [each for each in core.handle(Release("d", lease), 0.0) if isinstance(each, Granted)]:
        order += [each.request_id for each in grants]
        lease = grants[0].leases[0]
    assert order == ["two", "four"]
    core.handle(Release("c", parent), 0.0)
    assert nothing_left(core)


def test_a_grandchild_is_granted_beside_its_parent() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    first = lease_of(child(core, "child", parent))
    effects = core.handle(Acquire("c", "grandchild", parent=first, parent_client="d"), 0.0)
    assert granted(effects) == ["grandchild"]
    assert held(core) == (1, 0)
    core.handle(Release("c", lease_of(effects)), 0.0)
    core.handle(Release("d", first), 0.0)
    core.handle(Release("c", parent), 0.0)
    assert nothing_left(core)


def test_tokens_stay_counted_until_the_last_of_a_family_has_ended() -> None:
    core = make_core(3)
    parent = lease_of(core.handle(Acquire("c", "parent", tokens=2), 0.0))
    core.handle(Bind("x", parent, "c"), 0.0)
    assert held(core) == (2, 2)
    first = lease_of(child(core, "child", parent, tokens=2))
    core.handle(Release("x", parent), 0.0)
    assert held(core) == (2, 0)
    core.handle(Bind("x", first, "d"), 0.0)
    assert held(core) == (2, 2)
    assert granted(core.handle(Acquire("c", "heavy", tokens=2), 0.0)) == []
    assert granted(core.handle(Release("x", first), 0.0)) == ["heavy"]


def test_those_that_wait_for_a_parent_that_ends_are_refused() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    first = lease_of(child(core, "one", parent))
    child(core, "two", parent)
    rejected = only(Rejected, core.handle(Release("c", parent), 0.0))
    assert (rejected.request_id, rejected.reason) == ("two", RejectReason.INVALID)
    assert rejected.message == f"parent is code/{parent}, which has ended"
    late = only(Rejected, child(core, "late", parent))
    assert late.message.startswith(f"parent is code/{parent}, which is not granted or bound")
    core.handle(Release("d", first), 0.0)
    assert nothing_left(core)


def test_a_parent_is_refused_by_name_unless_it_is_the_askers_of_the_same_bucket() -> None:
    core = make_core(2)
    core.handle(Configure(BucketLimits("gpu", 1), 0), 0.0)
    parent = lease_of(acquire(core, "c", "parent"))
    wrong = only(Rejected, core.handle(Acquire("d", "a", parent=parent, parent_client="d"), 0.0))
    assert (
        wrong.message == f"parent is code/{parent}, which was granted to another client session than the one presented"
    )
    wrong = only(Rejected, core.handle(Acquire("d", "b", bucket="gpu", parent=parent, parent_client="c"), 0.0))
    assert wrong.message == f"parent is gpu/{parent}, which is a lease of code, must be one of the bucket asked for"
    wrong = only(Rejected, child(core, "e", parent, tokens=2))
    assert wrong.message == "tokens is 2, must be at most 1, which is what the parent holds"
    wrong = only(Rejected, child(core, "f", LeaseId(5, 99)))
    assert wrong.reason is RejectReason.INVALID


def test_a_revoked_parent_gets_no_more_children() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    core.handle(Bind("x", parent, "c"), 0.0)
    first = lease_of(child(core, "one", parent))
    child(core, "two", parent)
    core.handle(Revoke(parent, force=True), 0.0)
    assert granted(core.handle(Release("d", first), 0.0)) == []
    assert only(Rejected, child(core, "three", parent)).request_id == "three"
    assert only(Rejected, core.handle(Release("x", parent), 0.0)).request_id == "two"
    assert nothing_left(core)


def test_children_expire_and_go_with_their_clients_like_others() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    core.handle(Bind("x", parent, "c"), 0.0)
    child(core, "one", parent)
    core.handle(Acquire("d", "two", parent=parent, parent_client="c", queue_timeout=1.0), 0.0)
    assert only(Rejected, core.handle(Tick(), 1.0)).reason is RejectReason.QUEUE_TIMEOUT
    assert only(Revoked, core.handle(Tick(), 5.0)).session_id == "d"
    child(core, "three", parent)
    core.handle(Heartbeat("x", 1), 5.0)
    core.handle(Disconnect("d"), 5.0)
    core.handle(Tick(), 6.5)
    assert held(core) == (1, 1)
    assert len(core.leases(6.5)) == 1


def test_a_lost_stream_is_skipped_in_its_line_and_returns_by_its_ticket() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    first = lease_of(child(core, "one", parent, session="c"))
    ticket = only(Queued, child(core, "two", parent)).ticket
    child(core, "three", parent, session="c")
    core.handle(Disconnect("d"), 0.0)
    again = Acquire("d", "two", parent=parent, parent_client="c", ticket=ticket)
    core.handle(Hello("d", SessionKind.CLIENT, queued=(again,)), 1.0)
    assert granted(core.handle(Release("c", first), 1.0)) == ["two"]
    core.handle(Disconnect("d"), 1.0)
    core.handle(Release("c", parent), 1.0)
    core.handle(Hello("d", SessionKind.CLIENT), 1.0)
    assert nothing_left(core)


def test_one_that_returns_after_its_parents_end_is_refused() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    first = lease_of(child(core, "one", parent, session="c"))
    ticket = only(Queued, child(core, "two", parent)).ticket
    core.handle(Disconnect("d"), 0.0)
    core.handle(Release("c", first), 0.0)
    core.handle(Release("c", parent), 0.0)
    again = Acquire("d", "two", parent=parent, parent_client="c", ticket=ticket)
    effects = core.handle(Hello("d", SessionKind.CLIENT, queued=(again,)), 1.0)
    assert only(Rejected, effects).request_id == "two"
    assert nothing_left(core)


def test_children_go_on_in_a_paused_bucket_and_beside_a_rate() -> None:
    core = make_core(1, rate_per_s=1.0)
    parent = lease_of(core.handle(Acquire("c", "parent"), 1.0))
    core.handle(Configure(BucketLimits("code", 1, rate_per_s=1.0, paused=True), 1), 1.0)
    assert granted(core.handle(Acquire("d", "child", parent=parent, parent_client="c"), 1.0)) == ["child"]


def test_a_bind_tells_what_a_later_hello_has_to_say() -> None:
    core = make_core(4)
    parent = lease_of(core.handle(Acquire("c", "parent", tokens=3), 0.0))
    first = lease_of(child(core, "child", parent))
    answer = only(BindAnswered, core.handle(Bind("x", first, "d"), 0.0))
    assert (answer.status, answer.tokens) == (BindStatus.BOUND, 3)
    assert (answer.parent, answer.family) == (parent, parent)
    second = lease_of(core.handle(Acquire("d", "grandchild", parent=first, parent_client="d"), 0.0))
    answer = only(BindAnswered, core.handle(Bind("x", second, "d"), 0.0))
    assert (answer.tokens, answer.parent, answer.family) == (3, first, parent)
    answer = only(BindAnswered, core.handle(Bind("x", parent, "c"), 0.0))
    assert (answer.tokens, answer.parent, answer.family) == (3, None, None)


PARENT, CHILD, GRANDCHILD = LeaseId(5, 1), LeaseId(5, 2), LeaseId(5, 3)
FAMILY = {
    PARENT: HeldLease(PARENT, "code", "c", 3),
    CHILD: HeldLease(CHILD, "code", "d", 3, PARENT, PARENT),
    GRANDCHILD: HeldLease(GRANDCHILD, "code", "d", 3, CHILD, PARENT),
}


def test_a_restarted_limiter_counts_a_family_once_in_whatever_order_it_returns() -> None:
    for order in ([PARENT, CHILD, GRANDCHILD], [GRANDCHILD, CHILD, PARENT], [CHILD, PARENT, GRANDCHILD]):
        core = LimiterCore(9, [CODE], now=0.0)
        for number, lease in enumerate(order):
            core.handle(Hello(f"x{number}", SessionKind.EXECUTOR, held=(FAMILY[lease],)), 0.0)
            assert held(core) == (3, 3)
        core.handle(Hello("c", SessionKind.CLIENT), 0.0)
        busy = core.handle(Acquire("c", "more", parent=PARENT, parent_client="c"), 0.0)
        assert granted(busy) == [], "the parent's child is known"
        for number, lease in enumerate(order):
            assert held(core) == (3, 3)
            core.handle(Release(f"x{number}", lease), 0.0)
            for grant in [info.lease for info in core.leases(0.0) if info.lease.epoch == 9]:
                core.handle(Release("c", grant), 0.0)
        assert nothing_left(core)


def test_a_child_whose_parent_is_reported_later_waits_for_it_in_the_recovery() -> None:
    timing = Timing()
    core = LimiterCore(9, [CODE], now=0.0, roster=(Member("x", "executor"),), timing=timing)
    asked = tuple(
        Acquire("c", name, parent=parent, parent_client="c", ticket=Ticket(5, seq))
        for seq, (name, parent) in enumerate([("child", PARENT), ("orphan", LeaseId(5, 7))], 1)
    )
    effects = core.handle(Hello("c", SessionKind.CLIENT, queued=asked), 0.0)
    assert not [each for each in effects if isinstance(each, (Granted, Rejected))]
    core.handle(Hello("x", SessionKind.EXECUTOR, held=(FAMILY[PARENT],)), 0.1)
    effects = core.handle(Tick(), timing.executor_silence)
    assert granted(effects) == ["child"]
    assert only(Rejected, effects).request_id == "orphan"
    assert held(core) == (3, 3)


def test_outcomes_of_children_count() -> None:
    core = make_core(1)
    parent = lease_of(acquire(core, "c", "parent"))
    first = lease_of(child(core, "one", parent))
    core.handle(Release("d", first, ReleaseOutcome.TIMEOUT), 0.0)
    assert core.statistics(0.0).bucket().outcomes[ReleaseOutcome.TIMEOUT] == 1
