"""The rules of the core for a new leader: whom it waits for, whom it lets in, and when it has to stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from limiter.core import BucketLimits, LimiterCore, Member, SessionKind, Ticket, Timing
from limiter.core.effects import (
    BindAnswered,
    Effect,
    Granted,
    HeartbeatAcked,
    Queued,
    Refused,
    RosterChanged,
    SteppedDown,
    Welcomed,
)
from limiter.core.events import (
    Acquire,
    Bind,
    Disconnect,
    Heartbeat,
    HeldLease,
    Hello,
    LeadUntil,
    Reading,
    Release,
    Returning,
    RosterFailed,
    RosterKept,
    Tick,
)
from limiter.core.ids import LeaseId
from tests.limiter.cores import acquire, granted, lease_of, make_core, only, unknown

X, Y = Member("x", "executor x"), Member("y", "executor y")
TIMING = Timing(executor_ttl=6.0, client_return=1.0)
SILENCE = TIMING.executor_silence


def restarted(
    roster: Sequence[Member] | None,
    *,
    limit: int = 2,
    keeps: bool = False,
    timing: Timing = TIMING,
    follows: bool = False,
    max_hold: float = 0.0,
) -> LimiterCore:
    limits = BucketLimits("code", limit, max_hold=max_hold)
    core = LimiterCore(7, [limits], now=100.0, timing=timing, roster=roster, follows=follows, keeps_roster=keeps)
    core.handle(Hello("c", SessionKind.CLIENT, "client"), 100.0)
    return core


def hello(core: LimiterCore, member: Member, now: float, *held: HeldLease) -> list[Effect]:
    return core.handle(Hello(member.session_id, SessionKind.EXECUTOR, member.name, held), now)


def test_without_executors_before_there_is_nothing_to_wait_for() -> None:
    core = restarted(())
    assert not core.recovering
    assert granted(acquire(core, "c", "a", 100.0)) == ["a"]


def test_nothing_is_granted_until_every_executor_has_returned() -> None:
    core = restarted((X, Y))
    assert granted(acquire(core, "c", "a", 100.1)) == []
    hello(core, X, 100.2)
    core.handle(Tick(), 102.0)
    statistics = core.statistics(102.0)
    assert (statistics.recovering, statistics.missing) == (True, ("executor y",))
    assert statistics.recovering_for == pytest.approx(SILENCE - 2)
    assert granted(hello(core, Y, 102.5)) == ["a"]
    assert not core.recovering
    assert (core.statistics(103.0).missing, core.statistics(103.0).recovering_for) == ((), 0.0)


def test_what_an_executor_runs_since_before_is_counted_before_anything_is_granted() -> None:
    core = restarted((X,), limit=2)
    for name in "abc":
        acquire(core, "c", name, 100.0)
    hello(core, X, 100.1, HeldLease(LeaseId(6, 1), "code", "old"))
    assert granted(core.handle(Tick(), 101.0)) == ["a"]
    assert core.statistics(101.0).held == 2


def test_clients_have_the_time_to_bring_their_tickets_back() -> None:
    core = restarted((X,), limit=1)
    hello(core, X, 100.1)
    assert core.next_deadline() == 101.0
    core.handle(Acquire("c", "late", ticket=None), 100.2)
    first = Acquire("d", "early", ticket=Ticket(6, 3))
    core.handle(Hello("d", SessionKind.CLIENT, "other", queued=(first,)), 100.9)
    assert granted(core.handle(Tick(), 101.0)) == ["early"]


def test_executors_that_do_not_return_are_waited_for_until_their_programs_have_ended() -> None:
    core = restarted((X, Y), keeps=True)
    acquire(core, "c", "a", 100.0)
    hello(core, X, 100.1)
    assert core.next_deadline() == 100.0 + SILENCE
    assert granted(core.handle(Tick(), 100.0 + SILENCE - 0.001)) == []
    effects = core.handle(Tick(), 100.0 + SILENCE)
    assert granted(effects) == ["a"]
    assert only(RosterChanged, effects).members == (X,)


def test_tickets_of_a_hello_that_came_in_time_count_although_it_is_read_late() -> None:
    core = restarted((X,), limit=1)
    hello(core, X, 100.1)
    core.handle(Acquire("c", "late"), 100.2)
    core.handle(Reading(1), 100.9)
    assert granted(core.handle(Tick(), 101.0)) == []
    first = Acquire("d", "early", ticket=Ticket(6, 3))
    core.handle(Hello("d", SessionKind.CLIENT, "other", queued=(first,)), 101.5)
    assert granted(core.handle(Reading(-1), 101.5)) == ["early"]


def test_hello_that_is_never_read_does_not_keep_the_recovery_from_ending() -> None:
    core = restarted((X,))
    acquire(core, "c", "a", 100.0)
    core.handle(Reading(1), 100.0)
    hello(core, X, 100.1)
    assert granted(core.handle(Tick(), 110.999)) == []
    assert granted(core.handle(Tick(), 111.0)) == ["a"]


def test_executor_that_begins_to_return_is_vouched_for_and_waited_for_anew_once() -> None:
    core = restarted((X, Y))
    acquire(core, "c", "a", 100.0)
    assert core.handle(Returning("x", 3), 105.0) == [HeartbeatAcked("x", 3)]
    assert core.handle(Returning("x", 4), 105.5) == []
    assert core.handle(Returning("stranger", 1), 105.5) == []
    assert granted(core.handle(Tick(), 105.0 + SILENCE - 0.001)) == []
    assert core.statistics(106.5).recovering_for == pytest.approx(SILENCE - 1.5)
    assert granted(core.handle(Tick(), 105.0 + SILENCE)) == ["a"]


def test_executor_that_has_returned_is_not_waited_for_any_more() -> None:
    core = restarted((X, Y))
    acquire(core, "c", "a", 100.0)
    core.handle(Returning("x", 1), 105.0)
    hello(core, X, 105.1)
    assert granted(core.handle(Tick(), 100.0 + SILENCE)) == ["a"]


def test_known_executor_that_says_hello_again_lives_on_from_its_first_word() -> None:
    core = make_core(timing=TIMING)
    assert core.handle(Returning("x", 2), 5.0) == [HeartbeatAcked("x", 2)]
    assert core.handle(Returning("c", 2), 5.0) == []
    core.handle(Tick(), SILENCE)
    assert any(each.session_id == "x" for each in core.sessions(9))
    core.handle(Tick(), 5.0 + SILENCE)
    assert not any(each.session_id == "x" for each in core.sessions(9))


def test_without_a_roster_the_whole_learning_time_has_to_pass() -> None:
    core = restarted(None)
    acquire(core, "c", "a", 100.0)
    hello(core, X, 100.1)
    assert granted(core.handle(Tick(), 100.0 + SILENCE - 0.001)) == []
    assert granted(core.handle(Tick(), 100.0 + SILENCE)) == ["a"]


@pytest.mark.parametrize(("max_hold", "until"), [(0.0, 101.0), (60.0, 103.0)])
def test_clients_and_holders_are_waited_for_where_there_were_no_executors(max_hold: float, until: float) -> None:
    core = restarted((), limit=2, follows=True, max_hold=max_hold)
    assert core.recovering
    assert granted(acquire(core, "c", "a", 100.0)) == []
    assert granted(core.handle(Tick(), until - 0.001)) == []
    held = (HeldLease(LeaseId(6, 1), "code", "d", 2, hold=30.0),) if max_hold else ()
    early = (Acquire("d", "early", ticket=Ticket(6, 3)),)
    core.handle(Hello("d", SessionKind.CLIENT, "other", held, early), until - 0.001)
    effects = core.handle(Tick(), until)
    assert granted(effects) == ([] if max_hold else ["early", "a"])
    assert core.statistics(until).held == 2


def test_held_leases_come_back_within_the_limit_and_for_as_long_as_clients_are_expected() -> None:
    core = restarted((), limit=4, follows=True, max_hold=60.0)

    def claim(now: float, *leases: tuple[int, int]) -> list[LeaseId]:
        held = tuple(HeldLease(LeaseId(6, seq), "code", "d", tokens, hold=30.0) for seq, tokens in leases)
        return unknown(core.handle(Hello("d", SessionKind.CLIENT, held=held), now))

    assert claim(100.1, (1, 3), (2, 2), (3, 1)) == [LeaseId(6, 2)]
    assert core.statistics(100.1).held == 4
    core.handle(Tick(), 103.0)
    assert claim(103.9, (1, 3), (4, 1)) == []
    assert claim(104.1, (1, 3), (5, 1)) == [LeaseId(6, 5)]
    assert core.statistics(104.1).held == 3


def test_waiting_for_executors_lasts_no_less_than_for_clients() -> None:
    core = restarted((X,), timing=Timing(executor_ttl=0.2, client_return=2.0))
    assert core.next_deadline() == 102.0


def test_requests_queue_and_time_out_while_it_recovers() -> None:
    core = restarted(None)
    effects = core.handle(Acquire("c", "a", queue_timeout=1.0), 100.0)
    assert only(Queued, effects).request_id == "a"
    core.handle(Tick(), 101.0)
    assert core.statistics(101.0).queued == 0


def test_an_executor_is_welcomed_only_when_the_next_leader_would_know_of_it() -> None:
    core = restarted((), keeps=True)
    effects = hello(core, X, 100.0)
    change = only(RosterChanged, effects)
    assert (change.members, len(effects)) == ((X,), 1)
    lease = lease_of(acquire(core, "c", "a", 100.0))
    refused = only(BindAnswered, core.handle(Bind("x", lease, "c"), 100.0))
    assert refused.status == "unknown_lease"
    assert core.handle(Heartbeat("x", 1), 100.0) == []
    assert only(Welcomed, core.handle(RosterKept(change.version), 100.1)).session_id == "x"
    assert only(BindAnswered, core.handle(Bind("x", lease, "c"), 100.1)).status == "bound"


def test_an_older_roster_lets_nobody_in_who_is_not_on_it() -> None:
    core = restarted((), keeps=True)
    first = only(RosterChanged, hello(core, X, 100.0))
    second = only(RosterChanged, hello(core, Y, 100.0))
    assert second.members == (X, Y)
    assert only(Welcomed, core.handle(RosterKept(first.version), 100.1)).session_id == "x"
    assert core.handle(RosterKept(first.version), 100.1) == []
    assert only(Welcomed, core.handle(RosterKept(second.version), 100.2)).session_id == "y"


def test_of_executors_that_are_let_in_at_once_the_tickets_decide() -> None:
    core = restarted((), limit=1, keeps=True, follows=True)
    first, second = (
        Hello(member.session_id, SessionKind.EXECUTOR, queued=(Acquire(member.session_id, "a", ticket=Ticket(6, seq)),))
        for member, seq in ((X, 9), (Y, 2))
    )
    core.handle(first, 100.0)
    change = only(RosterChanged, core.handle(second, 100.0))
    core.handle(Tick(), 101.0)
    effects = core.handle(RosterKept(change.version), 101.1)
    assert [effect.session_id for effect in effects if isinstance(effect, Granted)] == ["y"]


def test_who_is_on_the_roster_is_welcomed_at_once() -> None:
    core = restarted((X,), keeps=True)
    assert only(Welcomed, hello(core, X, 100.0)).session_id == "x"
    core.handle(Disconnect("x"), 100.1)
    assert only(Welcomed, hello(core, X, 100.2)).session_id == "x"


def test_who_leaves_before_it_is_let_in_is_taken_off() -> None:
    core = restarted((), keeps=True)
    change = only(RosterChanged, hello(core, X, 100.0))
    assert only(RosterChanged, core.handle(Disconnect("x"), 100.1)).members == ()
    assert core.handle(RosterKept(change.version), 100.2) == []
    assert core.statistics(100.2).executors == 0


def test_a_silent_executor_is_taken_off_when_its_programs_have_ended() -> None:
    core = restarted((X,), keeps=True)
    hello(core, X, 100.0)
    core.handle(Tick(), 101.0)
    assert only(RosterChanged, core.handle(Tick(), 100.0 + SILENCE)).members == ()


def test_an_executor_that_finds_no_room_is_not_kept() -> None:
    core = restarted((), keeps=True, timing=Timing(max_sessions=1))
    change = [only(RosterChanged, hello(core, member, 100.0)) for member in (X, Y)][-1]
    effects = core.handle(RosterKept(change.version), 100.0)
    assert only(Refused, effects).session_id == "y"
    assert only(RosterChanged, effects).members == (X,)


def test_a_hello_of_another_kind_is_refused_before_it_joins() -> None:
    core = restarted((), keeps=True)
    assert only(Refused, hello(core, Member("c", "not a client"), 100.0)).session_id == "c"


def test_nothing_is_decided_once_another_limiter_may_lead() -> None:
    core = make_core(1)
    core.handle(LeadUntil(10.0), 0.0)
    lease = lease_of(acquire(core, "c", "a", 1.0))
    acquire(core, "d", "b", 1.0)
    assert core.next_deadline() == 6.0
    core.handle(Bind("x", lease, "c"), 5.0)
    assert only(HeartbeatAcked, core.handle(Heartbeat("x", 1), 9.9)).number == 1
    assert core.next_deadline() == 10.0
    assert core.handle(Release("x", lease), 10.0) == [SteppedDown()]
    assert core.next_deadline() is None
    for event in (Heartbeat("x", 2), Bind("x", lease, "c"), Acquire("c", "z"), LeadUntil(99.0), Tick()):
        assert core.handle(event, 10.0) == []


def test_a_renewal_in_time_goes_on() -> None:
    core = make_core(1)
    core.handle(LeadUntil(10.0), 0.0)
    core.handle(LeadUntil(20.0), 9.0)
    assert granted(acquire(core, "c", "a", 15.0)) == ["a"]


def test_a_renewal_that_is_told_late_goes_on_unless_it_has_run_out_too() -> None:
    core = make_core(1)
    core.handle(LeadUntil(10.0), 0.0)
    assert SteppedDown() not in core.handle(LeadUntil(20.0), 10.0)
    assert granted(acquire(core, "c", "a", 15.0)) == ["a"]
    assert core.handle(LeadUntil(25.0), 25.0) == [SteppedDown()]


def test_a_roster_of_those_that_are_here_never_hides_those_that_nobody_knows() -> None:
    """Kept before the end of the recovery, it would let the next leader grant while another executor still runs."""
    core = restarted(None, keeps=True)
    welcomed = hello(core, X, 100.2)
    assert [type(effect) for effect in welcomed] == [Welcomed]
    gone = core.handle(Disconnect("x"), 100.3)
    assert not [effect for effect in [*gone, *hello(core, Y, 100.4)] if isinstance(effect, RosterChanged)]
    assert core.recovering
    ended = core.handle(Tick(), 100.0 + SILENCE)
    assert only(RosterChanged, ended).members == (X, Y)
    later = core.handle(Tick(), 100.4 + 2 * SILENCE)
    assert [effect.members for effect in later if isinstance(effect, RosterChanged)] == [(Y,), ()]


def test_at_the_end_of_a_first_term_without_executors_the_next_knows_that_there_are_none() -> None:
    core = restarted(None, keeps=True)
    assert only(RosterChanged, core.handle(Tick(), 100.0 + SILENCE)) == RosterChanged((), 0)


def test_executors_that_wait_for_a_roster_that_can_not_be_kept_are_refused_and_leave_it() -> None:
    core = restarted((X,), keeps=True)
    hello(core, X, 100.1)
    hello(core, Y, 100.2)
    effects = core.handle(RosterFailed("the disk is full"), 100.3)
    refused = only(Refused, effects)
    assert (refused.session_id, refused.message, refused.retry_after) == ("y", "the disk is full", 1.0)
    assert only(RosterChanged, effects).members == (X,)
    assert core.handle(RosterKept(9), 100.4) == []
    assert only(RosterChanged, hello(core, Y, 100.5)).members == (X, Y)
