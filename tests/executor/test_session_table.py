"""The table of sessions: one cell at a time, first in first out, bounded, nothing forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.errors import SessionBusy, SessionNotFound
from executor_service.model import Cause, Limits, SessionInfo
from executor_service.sessions.reasons import Ended, TooManySessions
from executor_service.sessions.table import KEPT_ENDED, LiveSession, SessionTable
from fairbox.testing import ManualClock


def add(table: SessionTable, info: SessionInfo) -> LiveSession:
    table.reserve(1, info.tenant)
    nothing = cast("Any", None)
    return table.add(info, Limits(), nothing, nothing)


def table_of(*session_ids: str, most: int = 100) -> SessionTable:
    table = SessionTable("here", ManualClock(), most=most)
    for session_id in session_ids:
        add(table, SessionInfo(session_id))
    return table


async def arrive(session: LiveSession, number: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(session.enter()) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def done(tasks: list[asyncio.Task[None]]) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_cells_of_a_session_take_turns_in_order_of_arrival() -> None:
    session = table_of("s").find("s")
    cells = await arrive(session, 3)
    assert await done(cells) == [True, False, False]
    session.leave()
    assert await done(cells) == [True, True, False]
    session.leave()
    assert await done(cells) == [True, True, True]
    assert session.seen().busy
    session.leave()
    assert not session.seen().busy


async def test_one_that_gives_up_waiting_is_passed_over() -> None:
    session = table_of("s").find("s")
    cells = await arrive(session, 5)
    cells[1].cancel()
    session.leave()
    cells[2].cancel()  # its turn may have come in this moment
    assert await done(cells) == [True, True, True, True, False]
    assert not cells[3].cancelled()
    session.leave()
    assert await done(cells) == [True] * 5
    session.leave()
    assert not session.busy


async def test_what_can_not_wait_is_refused_while_a_cell_runs() -> None:
    session = table_of("s").find("s")
    await session.enter()
    with pytest.raises(SessionBusy):
        session.enter_at_once()
    session.leave()
    session.enter_at_once()
    [cell] = await arrive(session, 1)
    assert not cell.done()
    cell.cancel()


def test_room_is_taken_while_sessions_are_being_made() -> None:
    table = table_of(most=3)
    table.reserve(2, "a")
    with pytest.raises(TooManySessions, match=r"3 sessions.*max_sessions.*2 of them this tenant's, whose share is 3"):
        table.reserve(2, "a")
    table.release(2, "a")
    table.reserve(3, "a")


async def test_room_is_made_by_those_that_have_borrowed_or_nothing_changes() -> None:
    clock = ManualClock()
    table = SessionTable("here", clock, most=6, weights={"b": 2.0})
    made = {}
    for name in ("a1", "a2", "a3", "a4", "c1", "c2"):
        made[name] = add(table, SessionInfo(name, tenant=name[0]))
        clock.advance(1)
    made["a1"].busy = made["a3"].busy = True
    with pytest.raises(TooManySessions, match=r"max_sessions\), 0 of them this tenant's, whose share is 3"):
        table.reserve(4, "b")
    giving_way, ends = table.reserve(3, "b")
    assert giving_way == [made["a2"], made["a4"], made["a3"]], "rested longest, then the newest whose cell waits"
    for session in giving_way:
        table.end(session.info.session_id, Ended("gave way"))
    assert [end.result() for end in ends] == giving_way
    with pytest.raises(TooManySessions, match="1 of them this tenant's, whose share is 1"):
        table.reserve(1, "a")
    table.release(3, "b")
    table.reserve(3, "a")


async def test_a_session_in_which_a_cell_runs_gives_way_when_that_has_ended() -> None:
    table = SessionTable("here", ManualClock(), most=4)
    made = [add(table, SessionInfo(f"a{number}", tenant="a")) for number in range(4)]
    for session in made:
        session.busy = session.running = True
    giving_way, [first] = table.reserve(1, "b")
    assert giving_way == []
    _, [second] = table.reserve(1, "c")
    with pytest.raises(TooManySessions):
        table.reserve(1, "a")
    assert table.owes("a")
    table.end("a2", Ended("was deleted"))
    assert first.result() is made[2], "whoever waits longest has the room, and whatever ends makes it"
    assert table.owes("a")
    assert not second.done()
    table.end("a0", Ended("gave way"))
    assert second.result() is made[0]
    assert not table.owes("a")
    with pytest.raises(TooManySessions, match="2 of them this tenant's, whose share is 1"):
        table.reserve(1, "a")
    with pytest.raises(TooManySessions, match="1 of them this tenant's, whose share is 1"):
        table.reserve(1, "b")


async def test_nobody_owes_room_to_one_that_no_longer_waits() -> None:
    table = SessionTable("here", ManualClock(), most=2)
    for number in range(2):
        add(table, SessionInfo(f"a{number}", tenant="a")).running = True
    _, [end] = table.reserve(1, "b")
    end.cancel()
    table.release(1, "b")
    assert not table.owes("a")
    with pytest.raises(TooManySessions, match="2 of them this tenant's"):
        table.reserve(1, "a")
    table.end("a0", Ended("was deleted"))
    assert table.reserve(1, "b") == ([], [])


async def test_an_ended_session_says_why_and_who_could_have_caused_it() -> None:
    table = table_of("s")
    session = table.find("s")
    cells = await arrive(session, 3)
    table.end("s", Ended("was killed for its memory limit", Cause.POLICY))
    table.end("s", Ended("was deleted"))
    for cell in cells[1:]:
        with pytest.raises(SessionNotFound, match="was killed for its memory limit"):
            await cell
    with pytest.raises(SessionNotFound, match="was killed for its memory limit") as caught:
        table.find("s")
    assert caught.value.cause is Cause.POLICY
    session.leave()


def test_reasons_of_ended_sessions_are_bounded() -> None:
    table = table_of(most=1)
    for number in range(KEPT_ENDED + 1):
        add(table, SessionInfo(f"here~{number}"))
        table.end(f"here~{number}", Ended("was deleted"))
    assert "is not known" in str(table.not_found("here~0"))
    assert "was deleted" in str(table.not_found(f"here~{KEPT_ENDED}"))


@given(st.integers(1, 7), st.integers(0, 40), st.sampled_from(["", "a", "b"]))
def test_pages_hold_every_session_once_in_order_of_age(size: int, number: int, owner: str) -> None:
    table = table_of()
    for index in range(number):
        add(table, SessionInfo(f"s{index}", owner="ab"[index % 2]))
    seen: list[str] = []
    after = 0
    while True:
        found, after = table.page(owner=owner, tenant="", after=after, size=size)
        assert len(found) <= size
        seen += [info.session_id for info in found]
        if not after:
            break
    assert seen == [f"s{index}" for index in range(number) if owner in ("", "ab"[index % 2])]


def test_a_session_deleted_between_pages_does_not_hide_others() -> None:
    table = table_of(*"abcd")
    _, after = table.page(owner="", tenant="", after=0, size=2)
    table.end("b", Ended("was deleted"))
    rest, after = table.page(owner="", tenant="", after=after, size=2)
    assert [info.session_id for info in rest] == ["c", "d"]
    assert after == 0
