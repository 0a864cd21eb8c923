"""Choice of the replica for a turn: the balancer alone, with its own time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.engines.replicas import placement as replicas
from rollout.engines.replicas.placement import Balancer


def ready(*names: str) -> Balancer:
    balancer = Balancer(names, now=0)
    assert balancer.choose("t") is None
    assert balancer.due(0) == list(names)
    for name in names:
        balancer.probed(name, None, now=0)
    return balancer


def up(balancer: Balancer) -> list[bool]:
    return [view.up for view in balancer.views()]


def loads(balancer: Balancer) -> list[int]:
    return [view.load for view in balancer.views()]


def test_trajectory_stays_where_it_was_and_new_ones_go_to_the_least_loaded() -> None:
    balancer = ready("a", "b")
    assert [balancer.choose(each) for each in ("t1", "t2", "t3")] == ["a", "b", "a"]
    for name in "aab":
        balancer.ended(name)
    assert loads(balancer) == [0, 0]
    assert [balancer.choose(each) for each in ("t1", "t3")] == ["a", "a"]
    assert balancer.choose("t2") == "b"


def test_trajectory_moves_away_from_a_replica_with_far_more_to_do() -> None:
    balancer = ready("a", "b")
    assert balancer.choose("t") == "a"
    balancer.failed("b", "gone", now=0)
    for number in range(3):
        assert balancer.choose(f"u{number}") == "a"
    assert balancer.due(0) == ["b"]
    balancer.probed("b", None, now=0)
    assert loads(balancer) == [4, 0]
    assert balancer.choose("t") == "b"
    assert balancer.choose("t") == "b"  # and stays there


def test_small_differences_move_nothing() -> None:
    balancer = ready("a", "b")
    assert balancer.choose("t") == "a"
    assert balancer.choose("t") == "a"
    assert balancer.choose("t") == "a"


def test_failed_turn_takes_its_replica_out_until_a_probe_succeeds() -> None:
    balancer = ready("a", "b")
    assert balancer.choose("t") == "a"
    balancer.failed("a", "gone", now=1)
    balancer.ended("a")
    assert up(balancer) == [False, True]
    assert balancer.choose("t", avoid={"a"}) == "b"
    assert balancer.due(1) == ["a"]
    assert balancer.due(1) == []  # under way
    assert not balancer.probed("a", "refused", now=1)
    assert balancer.next_probe_at() == 1.5
    assert balancer.due(1.4) == []
    assert balancer.due(1.5) == ["a"]
    assert not balancer.probed("a", "refused", now=1.5)
    assert balancer.due(2.4) == []
    assert balancer.due(2.5) == ["a"]
    assert balancer.probed("a", "refused", now=2.5)  # the third in a row: turns that run there are given up
    assert balancer.due(8) == ["a", "b"]
    assert not balancer.probed("a", None, now=8)
    assert up(balancer) == [True, True]


def test_probes_of_a_dead_replica_grow_apart_up_to_a_bound() -> None:
    balancer = Balancer(["a"], now=0)
    pauses, now = [], 0.0
    for _ in range(6):
        assert balancer.due(now) == ["a"]
        balancer.probed("a", "refused", now=now)
        at = balancer.next_probe_at()
        assert at is not None
        pauses.append(at - now)
        now = at
    assert pauses == [0.5, 1, 2, 4, 8, 15]


def test_probe_that_fails_alone_is_enough_to_send_no_new_turns() -> None:
    balancer = ready("a", "b")
    assert balancer.due(5) == ["a", "b"]
    balancer.probed("b", None, now=5)
    balancer.probed("a", "no answer", now=5)
    assert [balancer.choose(f"t{number}") for number in range(3)] == ["b", "b", "b"]
    assert balancer.views()[0].last_error == "no answer"


def test_it_is_known_for_how_long_no_replica_has_been_ready() -> None:
    balancer = Balancer("ab", now=5.0)
    assert balancer.away_s(7.0) == 2.0
    for name in "ab":
        balancer.probed(name, None, now=8.0)
    assert balancer.away_s(9.0) == 0.0
    balancer.failed("a", "gone", now=10.0)
    assert balancer.away_s(11.0) == 0.0
    balancer.probed("b", "gone", now=12.0)
    balancer.probed("a", "gone", now=14.0)
    balancer.failed("b", "gone", now=15.0)
    assert balancer.away_s(16.0) == 4.0
    balancer.probed("a", None, now=17.0)
    assert balancer.away_s(18.0) == 0.0


def test_turn_goes_to_another_replica_than_those_that_failed_it() -> None:
    balancer = ready("a", "b")
    assert balancer.choose("t") == "a"
    assert balancer.choose("t", avoid={"a"}) == "b"
    assert balancer.choose("t") == "b"


def test_avoided_replica_is_taken_where_there_is_no_other() -> None:
    balancer = ready("a")
    assert balancer.choose("t", avoid={"a"}) == "a"


def test_forgotten_trajectory_is_placed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MAX_STICKY", 2)
    balancer = Balancer(["a", "b"], now=0)
    for name in balancer.due(0):
        balancer.probed(name, None, now=0)
    for each in ("t1", "t2", "t3"):
        balancer.choose(each)
    assert len(balancer._sticky) == 2


@given(st.lists(st.tuples(st.sampled_from(["choose", "end", "fail", "probe"]), st.integers(0, 5)), max_size=80))
def test_turns_are_counted_and_go_to_ready_replicas_only(steps: list[tuple[str, int]]) -> None:
    names = ("a", "b", "c")
    balancer = ready(*names)
    placed: list[str] = []
    now = 0.0
    for step, number in steps:
        now += 1
        name = names[number % 3]
        if step == "choose":
            before = {view.name: view.up for view in balancer.views()}
            chosen = balancer.choose(f"t{number}")
            if chosen is None:
                assert not any(before.values())
            else:
                assert before[chosen]
                placed.append(chosen)
        elif step == "end" and placed:
            balancer.ended(placed.pop(number % len(placed)))
        elif step == "fail":
            balancer.failed(name, "gone", now=now)
        elif step == "probe":
            for due in balancer.due(now):
                balancer.probed(due, None if number % 2 else "gone", now=now)
        assert loads(balancer) == [placed.count(each) for each in names]
    for _ in range(20):  # whatever happened, probes that succeed bring everything back
        now += 10
        for due in balancer.due(now):
            balancer.probed(due, None, now=now)
    assert all(up(balancer))
