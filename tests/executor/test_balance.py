"""Choice among several executors for a call: the decisions alone, without servers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.client.balance import FIRST_PAUSE_S, FRESH_S, LAST_PAUSE_S, Balance, Load


def balance(*addresses: str, seed: int = 1) -> Balance:
    made = Balance(random.Random(seed).random)
    made.update(addresses)
    return made


def picks(made: Balance, now: float, count: int = 400, **options: object) -> Counter[str | None]:
    return Counter(made.pick(now, **options) for _ in range(count))  # type: ignore[arg-type]


def answer(made: Balance, address: str, now: float, load: Load | None = None, *, failed: bool | None = False) -> None:
    made.began(address)
    made.ended(address, now, load=load, failed=failed)


def test_nobody_is_nobody() -> None:
    assert balance().pick(0.0) is None


def test_equals_are_drawn_equally() -> None:
    counts = picks(balance("a", "b", "c"), 0.0, 3000)
    assert all(800 < counts[each] < 1200 for each in "abc"), counts


def test_the_most_loaded_of_many_takes_none() -> None:
    made = balance("a", "b", "c")
    for running, address in enumerate("abc"):
        answer(made, address, 0.0, Load(running, 0, 8))
    counts = picks(made, 1.0, 3000)
    assert counts["c"] == 0
    assert counts["a"] > counts["b"] > 0


def test_load_is_relative_to_what_a_server_can_run() -> None:
    made = balance("small", "large")
    answer(made, "small", 0.0, Load(2, 0, 2))
    answer(made, "large", 0.0, Load(6, 0, 16))
    assert picks(made, 1.0) == {"large": 400}


def test_what_was_sent_since_counts_before_the_server_can_tell() -> None:
    made = balance("a", "b")
    for address in "ab":
        answer(made, address, 0.0, Load(0, 0, 8))
    first = made.pick(0.0)
    assert first is not None
    made.began(first)
    assert picks(made, 0.0) == {"b" if first == "a" else "a": 400}


def test_an_old_word_says_nothing() -> None:
    made = balance("busy", "other")
    answer(made, "busy", 0.0, Load(8, 8, 8))
    answer(made, "other", 0.0, Load(0, 0, 8))
    assert picks(made, FRESH_S / 2) == {"other": 400}
    assert len(picks(made, FRESH_S + 1)) == 2


def test_a_server_that_failed_is_left_alone_for_longer_and_longer() -> None:
    made, now = balance("bad", "good"), 0.0
    for failure in range(8):
        answer(made, "bad", now, failed=True)
        pause = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2**failure)
        assert picks(made, now + pause * 0.99) == {"good": 400}
        assert picks(made, now + pause)["bad"] > 0
        now += pause
    answer(made, "bad", now)
    answer(made, "bad", now, failed=True)
    assert picks(made, now + FIRST_PAUSE_S)["bad"] > 0


def test_a_call_that_its_caller_left_says_nothing_of_the_server() -> None:
    made = balance("hangs", "good")
    answer(made, "hangs", 0.0, failed=True)
    answer(made, "hangs", 1.0, failed=None)
    answer(made, "hangs", 2.0, failed=True)
    assert [facts.failures for facts in made.statistics() if facts.address == "hangs"] == [2]


def test_calls_that_fail_together_count_once() -> None:
    made = balance("bad", "good")
    for _ in range(20):
        made.began("bad")
    for _ in range(20):
        made.ended("bad", 0.0, load=None, failed=True)
    assert [facts.failures for facts in made.statistics() if facts.address == "bad"] == [1]


def test_where_all_have_failed_the_first_to_be_over_is_asked() -> None:
    made = balance("a", "b")
    answer(made, "a", 0.0, failed=True)
    answer(made, "b", 0.1, failed=True)
    assert picks(made, 0.2) == {"a": 400}


def test_avoiding_the_only_one_is_no_reason_to_ask_nobody() -> None:
    assert balance("a").pick(0.0, avoid=["a"]) == "a"
    assert picks(balance("a", "b"), 0.0, avoid=["a"]) == {"b": 400}
    assert picks(balance("a", "b", "c"), 0.0, avoid=["a", "b"]) == {"c": 400}
    assert picks(balance("a", "b"), 0.0, avoid=["b", "a"]) == {"b": 400}


def test_one_that_is_not_listed_is_asked_only_by_its_address() -> None:
    made = balance("a", "b")
    made.began("b")
    assert made.update(["a"]) == []
    assert picks(made, 0.0) == {"a": 400}
    assert made.pick(0.0, among={"b"}) == "b"
    made.ended("b", 0.0, load=None, failed=False)
    assert made.update(["a"]) == ["b"]
    assert made.pick(0.0, among={"b"}) is None
    made.remember(["b"])
    assert made.pick(0.0, among={"b"}) == "b"
    assert picks(made, 0.0) == {"a": 400}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 5)), max_size=40))
def test_whatever_happens_somebody_listed_is_chosen(events: list[tuple[str, bool, float]]) -> None:
    made, now = balance("a", "b", "c"), 0.0
    for address, failed, later in events:
        now += later
        answer(made, address, now, failed=failed)
        assert made.pick(now) in {"a", "b", "c"}
    assert all(facts.in_flight == 0 for facts in made.statistics())


@pytest.mark.parametrize("text", ["", "running=1", "running=1 queued=x capacity=2", "running=0 queued=0 capacity=0"])
def test_a_load_of_another_version_is_none(text: str) -> None:
    assert Load.parse(text) is None


def test_a_load_survives_the_way() -> None:
    assert Load.parse(str(Load(3, 1, 8))) == Load(3, 1, 8)
