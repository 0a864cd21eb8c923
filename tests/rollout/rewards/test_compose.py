"""Compositions: sums, parts, turns, and what becomes of functions that can't score or break."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service import Cause
from rollout.rewards import Composition, NotScored, Reward, RewardEntry, RewardFault, RewardServices, Sample
from rollout.rewards.turns import overlong, tool_call_rewards
from rollout.tools import ToolOutcome

SAMPLE = Sample("#### 6", "6")


def entry(name: str, gives: Any, weight: float = 1.0) -> RewardEntry:
    """A function that gives a value, or raises it."""

    async def function(sample: Sample) -> Any:
        await asyncio.sleep(random.random() * 0.002)
        if isinstance(gives, BaseException):
            raise gives
        return gives

    return RewardEntry(name, function, weight)


async def refused(*entries: RewardEntry) -> NotScored:
    with pytest.raises(NotScored) as caught:
        await Composition(entries).score(SAMPLE)
    return caught.value


async def test_the_value_is_the_weighted_sum_and_the_parts_are_not_weighted() -> None:
    own = Reward(0.5, {"file": 1.0, "module": 0.0}, {2: 0.25})
    found = await Composition((entry("a", own, 2.0), entry("b", True, -1.0), entry("c", 3, 0.0))).score(SAMPLE)
    assert found.value == 0.0
    assert found.parts == {"a": 0.5, "a/file": 1.0, "a/module": 0.0, "b": 1.0, "c": 3.0}
    assert list(found.parts) == ["a", "a/file", "a/module", "b", "c"]
    assert found.turns == {2: 0.5}


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=1, max_size=6))
def test_any_weights_and_values_add_up(pairs: list[tuple[float, float]]) -> None:
    entries = [entry(str(number), value, weight) for number, (weight, value) in enumerate(pairs)]
    found = asyncio.run(Composition(tuple(entries)).score(SAMPLE))
    assert found.value == pytest.approx(sum(weight * value for weight, value in pairs))


async def test_functions_wait_at_the_same_time() -> None:
    barrier = asyncio.Barrier(3)

    async def meets(sample: Sample) -> float:
        async with asyncio.timeout(30):
            await barrier.wait()
        return 1.0

    found = await Composition(tuple(RewardEntry(name, meets) for name in "abc")).score(SAMPLE)
    assert found.value == 3.0


async def test_services_reach_the_functions_that_ask_for_them() -> None:
    seen: list[RewardServices] = []

    def asks(sample: Sample, services: RewardServices, *, twice: bool = False) -> float:
        seen.append(services)
        return 2.0 if twice else 1.0

    services = RewardServices()
    asked = RewardEntry("asks", asks, arguments={"twice": True}, services=True)
    assert (await Composition((asked, entry("b", 1.0))).score(SAMPLE, services)).value == 3.0
    assert seen[0] is services


async def test_the_worst_cause_wins_and_every_problem_is_said() -> None:
    task, infra = NotScored(Cause.TASK, "no tests"), NotScored(Cause.INFRA, "the executor is gone")
    assert (await refused(entry("a", 1.0), entry("b", task))).cause is Cause.TASK
    both = await refused(entry("a", task), entry("b", infra), entry("c", 1.0))
    assert (both.cause, str(both)) == (Cause.INFRA, "a: no tests; b: the executor is gone")
    assert not isinstance(both, RewardFault)
    broken = await refused(entry("a", infra), entry("b", KeyError("x")))
    assert isinstance(broken, RewardFault)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (ValueError("no rule"), "odd raised ValueError: no rule"),
        (AssertionError(), "odd raised AssertionError"),
        (float("nan"), "odd: gave nan, must be a finite number"),
        (float("inf"), "odd: gave inf, must be a finite number"),
        (None, "odd: gave None, must be a number or a Reward"),
        ("1.0", "odd: gave '1.0', must be a number or a Reward"),
        (asyncio.CancelledError(), "odd: what it waited for was cancelled"),
        ((1.0, {}), "odd: gave .*, must be a number or a Reward"),
    ],
)
async def test_a_function_that_breaks_is_named_and_is_no_zero(gives: Any, said: str) -> None:
    with pytest.raises(RewardFault, match=said):
        await Composition((entry("good", 1.0), entry("odd", gives))).score(SAMPLE)


async def test_sums_that_overflow_and_parts_of_one_name_are_faults() -> None:
    with pytest.raises(RewardFault, match="the weighted sum of a is inf"):
        await Composition((entry("a", 1e300, 1e300),)).score(SAMPLE)
    with pytest.raises(RewardFault, match="two functions give a part of the name 'a/b'"):
        await Composition((entry("a", Reward(1.0, {"b": 1.0})), entry("a/b", 0.0))).score(SAMPLE)


async def test_cancelling_reaches_every_function() -> None:
    ended = []

    async def hangs(sample: Sample) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)
        return 0.0

    scoring = asyncio.create_task(Composition((RewardEntry("a", hangs), RewardEntry("b", hangs))).score(SAMPLE))
    await asyncio.sleep(0.01)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert ended == [1, 1]


def test_rewards_of_calls_stand_at_their_turns() -> None:
    def call(turn: int, name: str, reward: float | None) -> Any:
        from rollout.loop import ToolCallRecord

        return ToolCallRecord(turn, name, {}, "", ToolOutcome.OK, "", reward=reward)

    calls = (call(1, "a", -0.5), call(1, "a", 0.25), call(2, "b", 1.0), call(3, "a", None))
    sample = Sample("", "", tool_calls=calls)
    assert tool_call_rewards(sample) == Reward(0.75, {"calls": 3.0}, {1: -0.25, 2: 1.0})
    assert tool_call_rewards(sample, tools=("b",)) == Reward(1.0, {"calls": 1.0}, {2: 1.0})
    assert tool_call_rewards(Sample("", "")) == Reward(0.0, {"calls": 0.0})


def test_length_is_punished_softly() -> None:
    """The paper's own numbers, and what has no length."""
    worth = {16384: 0.0, 16385: -1 / 4096, 18432: -0.5, 20480: -1.0, 99999: -1.0, 0: 0.0}
    for tokens, value in worth.items():
        sample = Sample(text="", ground_truth="", response_tokens=tokens)
        assert overlong(sample, most=20480, buffer=4096) == pytest.approx(value)
    with pytest.raises(NotScored, match="length in tokens") as raised:
        overlong(Sample(text="", ground_truth=""))
    assert raised.value.cause is Cause.TASK
    assert overlong(Sample(text="", ground_truth="", response_tokens=1025), buffer=0) == -1.0
