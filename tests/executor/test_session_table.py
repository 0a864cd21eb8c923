"""The table of sessions, in any order of events: one cell at a time, first in first out, bounded, nothing forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from executor_service.core.sessions import (
    KEPT_ENDED,
    MAX_WAITING,
    Ended,
    SessionBusy,
    SessionNotFound,
    SessionTable,
    TooManySessions,
)
from executor_service.model import Cause, Limits, SessionInfo


def table_of(*session_ids: str, most: int = 100, ttl_s: float = 10.0) -> SessionTable:
    table = SessionTable("here", most=most)
    for session_id in session_ids:
        table.reserve(1)
        table.add(SessionInfo(session_id, idle_ttl_s=ttl_s), Limits(), 0.0)
    return table


def test_cells_of_a_session_take_turns_in_order_of_arrival() -> None:
    table = table_of("s")
    assert [table.enter("s", key) for key in "abc"] == [True, False, False]
    assert table.leave("s", "a", 1.0) == "b"
    assert table.leave("s", "b", 2.0) == "c"
    assert table.leave("s", "c", 3.0) is None
    assert table.enter("s", "d")


def test_one_that_gives_up_waiting_is_passed_over() -> None:
    table = table_of("s")
    for key in "abc":
        table.enter("s", key)
    assert table.leave("s", "b", 1.0) is None
    assert table.leave("s", "a", 1.0) == "c"


def test_waiting_cells_are_bounded() -> None:
    table = table_of("s")
    for key in range(MAX_WAITING + 1):
        table.enter("s", key)
    with pytest.raises(SessionBusy, match=str(MAX_WAITING)):
        table.enter("s", "one more")


def test_what_can_not_wait_is_refused_while_a_cell_runs() -> None:
    table = table_of("s")
    table.enter("s", "cell")
    with pytest.raises(SessionBusy):
        table.enter_at_once("s", "branch")
    table.leave("s", "cell", 1.0)
    table.enter_at_once("s", "branch")
    assert not table.enter("s", "cell")


def test_room_is_taken_while_sessions_are_being_made() -> None:
    table = table_of(most=3)
    table.reserve(2)
    with pytest.raises(TooManySessions, match=r"3 sessions.*max_sessions"):
        table.reserve(2)
    table.release(2)
    table.reserve(3)


def test_idle_sessions_expire_and_busy_ones_do_not() -> None:
    table = table_of("idle", "busy", ttl_s=10.0)
    table.enter("busy", "cell")
    assert table.expired(9.9) == []
    assert table.expired(10.0) == ["idle"]
    table.leave("busy", "cell", 20.0)
    assert table.expired(29.9) == ["idle"]
    assert table.expired(30.0) == ["idle", "busy"]


def test_an_ended_session_says_why_and_who_could_have_caused_it() -> None:
    table = table_of("s")
    for key in "abc":
        table.enter("s", key)
    assert table.end("s", Ended("was killed for its memory limit", Cause.POLICY)) == ("b", "c")
    assert table.end("s", Ended("was deleted")) == ()
    with pytest.raises(SessionNotFound, match="was killed for its memory limit") as caught:
        table.enter("s", "d")
    assert caught.value.cause is Cause.POLICY
    assert table.leave("s", "a", 1.0) is None


def test_reasons_of_ended_sessions_are_bounded() -> None:
    table = SessionTable("here", most=1)
    for number in range(KEPT_ENDED + 1):
        table.reserve(1)
        table.add(SessionInfo(f"here~{number}"), Limits(), 0.0)
        table.end(f"here~{number}", Ended("was deleted"))
    assert "is not known" in str(table.not_found("here~0"))
    assert "was deleted" in str(table.not_found(f"here~{KEPT_ENDED}"))


def test_an_id_of_another_server_is_said_to_be_so() -> None:
    table = SessionTable("here:1", most=1)
    assert "belongs to server 'there:2'" in str(table.not_found("there:2~abc"))
    assert "is not known here" in str(table.not_found(table.session_id("abc")))
    assert "is not known here" in str(table.not_found("nonsense"))


@given(st.integers(1, 7), st.integers(0, 40), st.sampled_from(["", "a", "b"]))
def test_pages_hold_every_session_once_in_order_of_age(size: int, number: int, owner: str) -> None:
    table = SessionTable("here", most=100)
    for index in range(number):
        table.reserve(1)
        table.add(SessionInfo(f"s{index}", owner="ab"[index % 2]), Limits(), 0.0)
    seen: list[str] = []
    after = 0
    while True:
        found, after = table.page(owner=owner, tenant="", after=after, size=size, now=0.0)
        assert len(found) <= size
        seen += [info.session_id for info in found]
        if not after:
            break
    assert seen == [f"s{index}" for index in range(number) if owner in ("", "ab"[index % 2])]


def test_a_session_deleted_between_pages_does_not_hide_others() -> None:
    table = table_of(*"abcd")
    _, after = table.page(owner="", tenant="", after=0, size=2, now=0.0)
    table.end("b", Ended("was deleted"))
    rest, after = table.page(owner="", tenant="", after=after, size=2, now=0.0)
    assert [info.session_id for info in rest] == ["c", "d"]
    assert after == 0


class Turns(RuleBasedStateMachine):
    """One session and any number of cells that come, wait, give up and end."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table_of("s")
        self.turn: int | None = None
        self.waiting: list[int] = []
        self.next = 0

    @rule()
    def arrives(self) -> None:
        self.next += 1
        if self.turn is not None and len(self.waiting) == MAX_WAITING:
            with pytest.raises(SessionBusy):
                self.table.enter("s", self.next)
            return
        assert self.table.enter("s", self.next) is (self.turn is None)
        if self.turn is None:
            self.turn = self.next
        else:
            self.waiting.append(self.next)

    @precondition(lambda self: self.turn is not None)
    @rule()
    def ends(self) -> None:
        following = self.table.leave("s", self.turn, 0.0)
        self.turn = self.waiting.pop(0) if self.waiting else None
        assert following == self.turn

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(key)
        assert self.table.leave("s", key, 0.0) is None

    @invariant()
    def says_whether_it_is_busy(self) -> None:
        assert self.table.info("s", 0.0).busy is (self.turn is not None)


TestTurns = Turns.TestCase
