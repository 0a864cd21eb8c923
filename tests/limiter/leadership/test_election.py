"""The rules of the election, one by one, with times written down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from limiter.leadership import Election, LeadershipLost, Member, Record
from limiter.leadership.election import Look, Rest, Role, Write

ROSTER = (Member("s1", "executor-0"), Member("s2", "executor-1"))
OTHER = Record("other", 4, 6.0, "4.9", ROSTER, "v1")


def write_of(election: Election, now: float, **keywords: int) -> Write:
    decision = election.decide(now, **keywords)
    assert isinstance(decision, Write)
    return decision


def leader(now: float = 0.0, record: Record | None = None) -> Election:
    """A candidate `me` that won at `now`, over a record that was free."""
    election = Election("me")
    assert election.decide(now) == Look()
    election.saw(record, now)
    election.wrote(replace(write_of(election, now).record, version="v2"), now)
    return election


def test_a_first_start_creates_the_record_and_knows_nobody() -> None:
    election = Election("me")
    election.saw(None, 0.0)
    assert write_of(election, 0.0) == Write(Record("me", 1, 6.0, "1.1", None), None)
    fresh = Election("me", fresh=True)
    fresh.saw(None, 0.0)
    assert write_of(fresh, 0.0, epoch_from=70).record == Record("me", 70, 6.0, "70.1", ())


def test_a_follower_waits_by_its_own_clock_from_when_it_saw_the_last_renewal() -> None:
    election = Election("me")
    election.saw(OTHER, 100.0)
    election.saw(replace(OTHER, renewal="4.10", version="v2"), 103.0)
    election.saw(replace(OTHER, renewal="4.10", version="v3"), 105.0)  # touched, not renewed
    assert election.decide(105.1) == Rest(105.75)
    assert election.decide(109.11) == Look()
    claim = write_of(election, 109.12)
    assert claim == Write(Record("me", 5, 6.0, "5.1", ROSTER), "v3")


def test_a_follower_waits_for_what_the_leader_promised_where_that_is_longer() -> None:
    election = Election("me", duration=2.0)
    election.saw(replace(OTHER, duration=10.0), 0.0)
    assert election.decide(10.19) == Look()
    assert isinstance(election.decide(10.2), Write)
    odd = Election("me", duration=2.0)
    odd.saw(replace(OTHER, duration=0.0), 0.0)
    assert odd.decide(2.03) == Look()


@pytest.mark.parametrize("holder", ["", "me"])
def test_a_released_record_and_one_of_its_own_identity_are_taken_at_once(holder: str) -> None:
    election = Election("me")
    election.saw(replace(OTHER, holder=holder), 0.0)
    assert write_of(election, 0.0) == Write(Record("me", 5, 6.0, "5.1", ROSTER), "v1")


@pytest.mark.parametrize(("kept", "key"), [(b"kept", b"kept"), (b"", b"mine")])
def test_a_term_has_the_key_of_the_one_before_and_knows_that_there_was_one(kept: bytes, key: bytes) -> None:
    election = Election("me", fresh=True, key=b"mine")
    election.saw(replace(OTHER, holder="", key=kept), 0.0)
    election.wrote(write_of(election, 0.0).record, 0.0)
    assert election.term is not None
    assert (election.term.follows, election.term.key) == (True, key)
    first = Election("me", fresh=True, key=b"mine")
    first.saw(None, 0.0)
    first.wrote(write_of(first, 0.0).record, 0.0)
    assert first.term is not None
    assert (first.term.follows, first.term.key) == (False, b"mine")


def test_a_leader_renews_each_quarter_and_counts_from_the_sending() -> None:
    election = leader()
    assert election.decide(1.0) == Rest(1.5)
    renewal = write_of(election, 1.5)
    assert (renewal.expected, renewal.record.holder, renewal.record.epoch) == ("v2", "me", 1)
    election.wrote(replace(renewal.record, version="v3"), 1.5)
    assert election.lead_until == pytest.approx(7.38)
    assert election.decide(2.0) == Rest(3.0)


def test_a_write_without_an_answer_is_looked_for_before_the_next() -> None:
    election = leader()
    lost = write_of(election, 1.5)
    election.failed(2.7)
    assert election.decide(2.7) == Look()
    election.saw(replace(lost.record, version="v3"), 2.8)
    assert election.lead_until == pytest.approx(5.88)
    assert write_of(election, 2.8).expected == "v3"


def test_a_conflict_with_its_own_late_write_loses_nothing() -> None:
    election = leader()
    late = write_of(election, 1.5)
    election.failed(2.7)
    election.saw(Record("me", 1, 6.0, "1.1", None, "v2"), 2.8)
    write_of(election, 2.8)
    election.conflicted(2.9)
    assert election.decide(2.9) == Look()
    election.saw(replace(late.record, version="v3"), 3.0)
    assert election.role is Role.LEADING


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (replace(OTHER, epoch=2), "other took over in epoch 2"),
        (Record("me", 2, 6.0, "2.1", None, "v9"), "me took over in epoch 2"),
        (Record("", 1, 6.0, "1.1", None, "v9"), "another process, which has resigned, took over in epoch 1"),
        (None, "was deleted"),
    ],
)
def test_a_record_that_is_not_its_own_any_more_ends_the_term(found: Record | None, why: str) -> None:
    election = leader()
    write_of(election, 1.5)
    election.conflicted(1.6)
    election.saw(found, 1.7)
    assert election.lead_until == float("-inf")
    with pytest.raises(LeadershipLost, match=why):
        election.decide(1.7)
    with pytest.raises(LeadershipLost, match=why):
        election.keep(())


def test_a_leader_that_slept_past_its_time_looks_first() -> None:
    election = leader()
    assert election.decide(60.0) == Look()
    alone = leader()
    alone.decide(60.0)
    alone.saw(Record("me", 1, 6.0, "1.1", None, "v2"), 60.1)
    renewal = write_of(alone, 60.1)
    alone.wrote(replace(renewal.record, version="v3"), 60.1)
    assert alone.lead_until == pytest.approx(65.98)
    election.saw(replace(OTHER, epoch=2), 60.1)
    with pytest.raises(LeadershipLost, match="other took over"):
        election.decide(60.2)


def test_a_roster_is_written_at_once_and_kept_when_that_is_confirmed() -> None:
    election = leader()
    kept = [election.kept]
    election.keep(ROSTER)
    kept.append(election.kept)
    write = write_of(election, 0.1)
    assert write.record.roster == ROSTER
    election.failed(1.3)
    kept.append(election.kept)
    election.saw(replace(write.record, version="v3"), 1.4)
    kept.append(election.kept)
    assert kept == [True, False, False, True]
    assert write_of(election, 1.5).record.roster == ROSTER


def test_resigning_stops_at_once_and_then_releases_the_record_with_its_roster() -> None:
    election = leader(record=replace(OTHER, holder=""))
    election.keep(ROSTER[:1])
    election.resign()
    assert election.lead_until == float("-inf")
    release = write_of(election, 0.1)
    assert (release.record.holder, release.record.epoch, release.record.roster) == ("", 5, ROSTER[:1])
    election.wrote(replace(release.record, version="v3"), 0.1)
    assert election.role is Role.OVER
    assert election.lead_until == float("-inf")


def test_a_candidate_that_resigns_releases_what_a_late_write_of_it_may_have_won() -> None:
    election = Election("me")
    election.saw(None, 0.0)
    claim = write_of(election, 0.0)
    election.failed(1.2)
    election.resign()
    assert election.decide(1.2) == Look()
    election.saw(replace(claim.record, version="v1"), 1.3)
    assert write_of(election, 1.3).record.holder == ""
    idle = Election("me")
    idle.saw(OTHER, 0.0)
    idle.resign()
    assert idle.decide(0.1) == Rest(float("inf"))
