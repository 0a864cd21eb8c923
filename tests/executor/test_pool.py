"""Which boxes are made, handed out and given up. Pure."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from executor_service.core.pool import Assign, Destroy, Make, WarmPool


def test_spare_boxes_are_made_ahead_and_taken_last_in_first_out() -> None:
    pool = WarmPool(spare=2, most=4)
    assert pool.tick(0.0) == [Make(0), Make(1)]
    assert pool.ready(0, 0.1) == []
    assert pool.ready(1, 0.1) == []
    assert pool.take("a", 1.0) == [Assign("a", 1), Make(2)]
    assert pool.statistics().used == 1


def test_takers_are_served_in_their_order() -> None:
    pool = WarmPool(spare=0, most=1)
    assert pool.take("a", 0.0) == [Make(0)]
    assert pool.take("b", 0.0) == []
    assert pool.ready(0, 0.1) == [Assign("a", 0)]
    pool.released(0)
    assert pool.ready(0, 0.2) == [Assign("b", 0)]


def test_a_taker_that_gave_up_gets_nothing() -> None:
    pool = WarmPool(spare=0, most=1)
    pool.take("a", 0.0)
    pool.take("b", 0.0)
    pool.give_up("a")
    assert pool.ready(0, 0.1) == [Assign("b", 0)]


def test_a_dead_box_is_replaced_for_who_waits() -> None:
    pool = WarmPool(spare=0, most=1)
    pool.take("a", 0.0)
    assert pool.gone(0, 0.1) == [Make(0)]
    assert pool.gone(7, 0.1) == []


def test_a_box_that_has_died_is_given_to_nobody_while_it_is_buried() -> None:
    pool = WarmPool(spare=0, most=2)
    pool.take("a", 0.0)
    pool.ready(0, 0.1)
    pool.released(0)
    pool.ready(0, 0.2)
    pool.lost(0)
    assert pool.statistics().ready == 0
    assert pool.ready(0, 0.3) == []
    assert pool.take("b", 0.3) == [Make(1)]
    assert pool.gone(0, 0.4) == []


def test_a_box_that_dies_in_use_does_not_come_back_when_its_user_leaves() -> None:
    pool = WarmPool(spare=0, most=2)
    pool.take("a", 0.0)
    assert pool.ready(0, 0.1) == [Assign("a", 0)]
    pool.lost(0)
    assert pool.statistics().used == 0
    pool.released(0)
    assert pool.ready(0, 0.2) == []
    assert pool.statistics().ready == 0


def test_boxes_beyond_need_are_given_up_after_two_periods() -> None:
    pool = WarmPool(spare=1, most=8, period_s=10.0)
    pool.tick(0.0)
    for name in "abc":
        pool.take(name, 0.0)
    for box in range(4):
        pool.ready(box, 0.1)
    for box in range(4):
        pool.released(box)
        pool.ready(box, 1.0)
    assert pool.tick(5.0) == []
    pool.tick(11.0)
    assert [type(action) for action in pool.tick(31.0)] == [Destroy, Destroy, Destroy]


class Pool(RuleBasedStateMachine):
    """Any order of events: a box has one user, takers come in order, the bound holds, nothing is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = WarmPool(spare=1, most=3, period_s=5.0)
        self.now = 0.0
        self.takers: list[int] = []
        self.next = 0
        self.made: set[int] = set()
        self.ready: set[int] = set()
        self.used: dict[int, int] = {}
        self.cleared: set[int] = set()

    def act(self, actions: list[Assign | Make | Destroy]) -> None:
        for action in actions:
            match action:
                case Assign(taker, box):
                    assert box in self.ready
                    assert taker == self.takers.pop(0)
                    self.ready.remove(box)
                    assert isinstance(taker, int)
                    self.used[box] = taker
                case Make(box):
                    assert box not in self.made | self.ready | set(self.used) | self.cleared
                    self.made.add(box)
                case Destroy(box):
                    assert box in self.ready

    @rule(gap=st.floats(0, 8))
    def tick(self, gap: float) -> None:
        self.now += gap
        actions = self.pool.tick(self.now)
        self.act(actions)
        for action in actions:
            if isinstance(action, Destroy):
                self.ready.remove(action.box)
                self.act(self.pool.gone(action.box, self.now))

    @rule()
    def take(self) -> None:
        self.next += 1
        self.takers.append(self.next)
        self.act(self.pool.take(self.next, self.now))

    @precondition(lambda self: self.takers)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        taker = data.draw(st.sampled_from(self.takers))
        self.takers.remove(taker)
        self.pool.give_up(taker)

    @precondition(lambda self: self.made or self.cleared)
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        box = data.draw(st.sampled_from(sorted(self.made | self.cleared)))
        self.made.discard(box)
        self.cleared.discard(box)
        self.ready.add(box)
        self.act(self.pool.ready(box, self.now))

    @precondition(lambda self: self.used)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        box = data.draw(st.sampled_from(sorted(self.used)))
        del self.used[box]
        self.cleared.add(box)
        self.pool.released(box)

    @precondition(lambda self: self.made or self.cleared or self.ready or self.used)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Dead, with some time until it is buried in which everything else goes on."""
        box = data.draw(st.sampled_from(sorted(self.made | self.cleared | self.ready | set(self.used))))
        for group in (self.made, self.cleared, self.ready):
            group.discard(box)
        self.used.pop(box, None)
        self.pool.lost(box)
        self.pool.released(box)
        self.act(self.pool.gone(box, self.now))

    @invariant()
    def counts_agree(self) -> None:
        counts = self.pool.statistics()
        assert counts.ready == len(self.ready)
        assert counts.used == len(self.used)
        assert counts.pending == len(self.made) + len(self.cleared)
        assert counts.waiting == len(self.takers)
        assert counts.ready + counts.used + counts.pending <= 3
        assert not (self.takers and self.ready)
        if self.takers and not self.used:
            assert self.made or self.cleared, "somebody waits and nothing is on the way"


TestPool = pytest.mark.filterwarnings("default")(Pool.TestCase)
