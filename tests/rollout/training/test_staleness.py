"""Groups that an asynchronous run begins, takes, drops and begins again, over generated histories."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairbox.errors import FairboxError
from rollout.training.rollouts.play import stream_task
from rollout.training.rollouts.staleness import LOST_PLAYS, GroupEnd, GroupLedger, StalenessRules, TakenGroup

RULES = {"per_step": 4, "max_staleness": 1, "workers": 8, "steps": 100}


def ledger(**changes: Any) -> GroupLedger:
    step, state = changes.pop("step", 1), changes.pop("state", None)
    return GroupLedger(StalenessRules(**RULES | changes), step=step, state=state)


def submitted(found: GroupLedger) -> list[int]:
    numbers = []
    while (number := found.submit()) is not None:
        numbers.append(number)
    return numbers


def test_the_capacity_is_that_of_skyrls_trainer() -> None:
    """Its vector: 4 groups a step, staleness 1, 8 workers."""
    found = ledger()
    assert found.capacity == 8
    assert submitted(found) == [*range(8)]
    for number in range(4):
        found.ended(number, scored=1)
    assert (found.accepted, found.capacity) == (4, 0)
    assert found.take() == tuple(TakenGroup(number, 0) for number in range(4))
    assert found.capacity == 0
    found.trained()
    assert found.capacity == 4


def test_what_the_service_failed_is_begun_again_and_given_up_in_the_end() -> None:
    found = ledger(per_step=1, workers=1)
    for play in range(1, LOST_PLAYS + 1):
        assert found.submit() == 0
        assert found.ended(0, scored=0) is (GroupEnd.LOST if play < LOST_PLAYS else GroupEnd.GIVEN_UP)
        assert found.lost_in_a_row == play
    assert found.submit() == 1
    found.ended(1, scored=1)
    assert found.lost_in_a_row == 0
    assert found.state() == {"next": 2, "again": [1]}


def test_groups_of_a_refused_step_are_begun_again() -> None:
    found = ledger(per_step=2, workers=4)
    for number in submitted(found):
        found.ended(number, scored=1)
    assert [group.number for group in found.take() or ()] == [0, 1]
    found.refuse()
    assert (found.lost, found.waiting, found.state()["again"]) == (2, 2, [0, 1, 2, 3])
    assert submitted(found) == [0, 1]
    assert [group.number for group in found.take() or ()] == [2, 3]


def test_groups_without_a_signal_are_replaced_up_to_a_bound() -> None:
    found = ledger(per_step=2, max_staleness=0, workers=2, replaced=3)
    assert submitted(found) == [0, 1]
    assert found.ended(0, scored=4, equal=True) is GroupEnd.REPLACED
    assert submitted(found) == [2]
    assert found.ended(1, scored=4) is GroupEnd.WAITS
    assert found.ended(2, scored=4, equal=True) is GroupEnd.REPLACED
    assert submitted(found) == [3]
    assert found.ended(3, scored=4, equal=True) is GroupEnd.REPLACED
    assert submitted(found) == [4]
    assert found.ended(4, scored=4, equal=True) is GroupEnd.WAITS  # three are enough
    assert [group.number for group in found.take() or ()] == [1, 4]
    found.trained()
    assert (found.replaced, found.state()) == (3, {"next": 5, "again": []})
    assert submitted(found) == [5, 6]
    assert found.ended(5, scored=4, equal=True) is GroupEnd.REPLACED  # another step, another three
    assert found.ended(6, scored=0, equal=True) is GroupEnd.LOST


def test_a_state_that_is_none_is_an_error() -> None:
    with pytest.raises(FairboxError, match="does not say which problems"):
        ledger(state={"next": 3})


def test_each_pass_has_every_problem_once_in_an_order_of_its_own() -> None:
    passes = [[stream_task(5 * epoch + place, tasks=5, seed=1) for place in range(5)] for epoch in range(3)]
    assert [sorted(one) for one in passes] == [[*range(5)]] * 3
    assert len({tuple(one) for one in passes}) == 3


class Ledgers(RuleBasedStateMachine):
    """Groups that end in any order, masked or not, with kills and resumes at any moment."""

    @initialize(
        per_step=st.integers(1, 3),
        max_staleness=st.integers(0, 3),
        workers=st.integers(1, 8),
        replaced=st.integers(0, 4),
    )
    def begin(self, per_step: int, max_staleness: int, workers: int, replaced: int) -> None:
        self.bounds = StalenessRules(per_step, max_staleness, workers, steps=12, replaced=replaced)
        self.ledger = GroupLedger(self.bounds)
        self.step = 1
        self.began: set[int] = set()
        self.waiting: list[int] = []
        self.taken: tuple[TakenGroup, ...] = ()
        self.trained: list[int] = []
        self.given_up: set[int] = set()
        """With those that were replaced."""
        self.saved: tuple[int, dict[str, Any], list[int], set[int]] = (1, self.ledger.state(), [], set())

    @rule()
    def submit(self) -> None:
        outstanding = self.ledger.state()["again"]
        number = self.ledger.submit()
        if number is not None:
            assert number not in self.began
            waiting_again = set(outstanding) - self.began - set(self.waiting) - {g.number for g in self.taken}
            assert not waiting_again or number == min(waiting_again)
            self.began.add(number)

    @precondition(lambda self: self.began)
    @rule(data=st.data(), scored=st.integers(0, 2), equal=st.booleans())
    def end(self, data: st.DataObject, scored: int, equal: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.began)))
        self.began.remove(number)
        end = self.ledger.ended(number, scored=scored, equal=equal)
        if end is GroupEnd.WAITS:
            self.waiting.append(number)
        elif end is not GroupEnd.LOST:
            self.given_up.add(number)

    @rule()
    def take(self) -> None:
        if self.taken:
            return
        taken = self.ledger.take()
        assert (taken is not None) == (len(self.waiting) >= self.bounds.per_step)
        if taken is None:
            return
        self.taken = taken
        assert [group.number for group in taken] == self.waiting[: self.bounds.per_step]
        del self.waiting[: self.bounds.per_step]

    @precondition(lambda self: self.taken)
    @rule(save=st.booleans())
    def train(self, save: bool) -> None:
        self.ledger.trained()
        self.trained += [group.number for group in self.taken]
        self.taken, self.step = (), self.step + 1
        if save:
            self.saved = (self.step, self.ledger.state(), list(self.trained), set(self.given_up))

    @precondition(lambda self: self.taken)
    @rule()
    def refuse(self) -> None:
        self.ledger.refuse()
        self.taken = ()

    @rule()
    def killed(self) -> None:
        self.step, state, trained, given_up = self.saved
        self.ledger = GroupLedger(self.bounds, step=self.step, state=state)
        self.trained, self.given_up = list(trained), set(given_up)
        self.began, self.waiting, self.taken = set(), [], ()

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "ledger"):
            return
        found, rules = self.ledger, self.bounds
        assert found.submitted == found.accepted + found.lost + found.replaced + found.running
        assert found.accepted == len(self.trained) + len(self.taken) + found.waiting
        assert found.running == len(self.began) <= rules.workers
        assert found.accepted + found.running <= min(rules.max_staleness + self.step, rules.steps) * rules.per_step
        if found.running + len(self.taken) == 0 and found.waiting < rules.per_step and self.step <= rules.steps:
            assert self.ledger.capacity > 0  # or the run would stand still

    @invariant()
    def each_problem_is_somewhere_and_once(self) -> None:
        if not hasattr(self, "ledger"):
            return
        state = self.ledger.state()
        places = Counter([*self.trained, *self.given_up, *state["again"]])
        assert places == Counter(range(state["next"]))


TestLedgers = Ledgers.TestCase
