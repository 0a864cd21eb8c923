"""The compile cache decides who builds and what is kept: pure, checked over random orders of events too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from executor_service.core.compile_cache import CompileCache, Known, Turn

ROOM = 1 << 20


def cache(max_bytes: int = ROOM) -> CompileCache[str, int, str]:
    return CompileCache(max_bytes=max_bytes)


def test_the_first_builds_and_the_others_wait() -> None:
    table = cache()
    assert [table.ask("a", who) for who in (1, 2, 3)] == [Turn.BUILD, Turn.WAIT, Turn.WAIT]
    assert table.ask("b", 4) is Turn.BUILD
    assert table.built("a", "program", 7, keep=True) == [2, 3]
    assert table.ask("a", 5) == Known("program")
    stats = table.statistics()
    assert (stats.entries, stats.building, stats.waiting, stats.hits, stats.built) == (1, 1, 0, 3, 1)


def test_what_is_not_to_be_kept_goes_to_those_who_wait_alone() -> None:
    table = cache()
    table.ask("a", 1)
    table.ask("a", 2)
    assert table.built("a", "killed", 7, keep=False) == [2]
    assert table.ask("a", 3) is Turn.BUILD


def test_when_the_builder_leaves_the_longest_waiting_builds() -> None:
    table = cache()
    for who in (1, 2, 3):
        table.ask("a", who)
    assert table.leave("a", 1) == 2
    assert table.leave("a", 2) == 3
    assert table.leave("a", 3) is None
    assert table.ask("a", 4) is Turn.BUILD


def test_one_who_waits_and_leaves_is_not_named() -> None:
    table = cache()
    for who in (1, 2, 3):
        table.ask("a", who)
    assert table.leave("a", 2) is None
    assert table.built("a", "program", 7, keep=True) == [3]
    assert table.leave("a", 3) is None


def test_the_least_recently_used_goes_first() -> None:
    table = cache(max_bytes=2 * 1025)  # two of one byte each, with what an entry costs
    for key in ("a", "b"):
        table.ask(key, 1)
        table.built(key, key, 1, keep=True)
    assert table.ask("a", 1) == Known("a")
    table.ask("c", 1)
    table.built("c", "c", 1, keep=True)
    assert table.ask("a", 1) == Known("a")
    assert table.ask("b", 1) is Turn.BUILD
    assert table.statistics().evicted == 1


def test_what_is_larger_than_all_the_room_is_not_kept_and_evicts_nothing() -> None:
    table = cache(max_bytes=ROOM)
    table.ask("a", 1)
    table.built("a", "a", 1, keep=True)
    table.ask("b", 1)
    assert table.built("b", "b", 2 * ROOM, keep=True) == []
    assert table.ask("a", 1) == Known("a")
    assert table.ask("b", 1) is Turn.BUILD


def test_without_room_nothing_is_kept() -> None:
    table = cache(max_bytes=0)
    table.ask("a", 1)
    table.built("a", "a", 1, keep=True)
    assert table.ask("a", 1) is Turn.BUILD


@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "built", "leave"]), st.sampled_from("ab"), st.integers(0, 4), st.booleans()),
        max_size=80,
    )
)
def test_a_key_has_one_builder_and_everybody_gets_an_answer(events: list[tuple[str, str, int, bool]]) -> None:
    table = cache(max_bytes=5000)
    builder: dict[str, int] = {}
    waiting: dict[str, list[int]] = {"a": [], "b": []}
    for kind, key, who, keep in events:
        inside = [each for each in (builder.get(key), *waiting[key]) if each is not None]
        if kind == "ask" and who not in inside:
            turn = table.ask(key, who)
            if turn is Turn.BUILD:
                assert key not in builder
                builder[key] = who
            elif turn is Turn.WAIT:
                assert key in builder
                waiting[key].append(who)
        elif kind == "built" and key in builder:
            assert table.built(key, key, 3000, keep=keep) == waiting[key]
            del builder[key]
            waiting[key] = []
        elif kind == "leave" and who in inside:
            successor = table.leave(key, who)
            if builder[key] != who:
                assert successor is None
                waiting[key].remove(who)
            elif waiting[key]:
                assert successor == waiting[key][0]
                builder[key] = waiting[key].pop(0)
            else:
                assert successor is None
                del builder[key]
        stats = table.statistics()
        assert (stats.building, stats.waiting) == (len(builder), sum(map(len, waiting.values())))
        assert stats.entries <= 1
        assert stats.bytes <= 5000
