"""The life cycle and the order of limits, as a pure machine."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbox.errors import ConfigError
from rollout.engines import FinishReason
from rollout.loop import CallTools, Finish, Generate, Limits, RequestState, StopReason, TrajectoryMachine, Usage
from rollout.loop.state import Decision
from tests.rollout.scripted import NO_LIMITS


def machine(limits: Limits = NO_LIMITS, *, prompt: int = 100, model: int = 10_000) -> TrajectoryMachine:
    return TrajectoryMachine(limits, prompt_tokens=prompt, max_model_tokens=model)


def only(**limits: float) -> Limits:
    return dataclasses.replace(NO_LIMITS, **limits)  # type: ignore[arg-type]


def test_a_trajectory_lives_from_pending_to_completed() -> None:
    life = machine()
    states = [life.state]
    assert life.start() == Generate(9_900)
    states.append(life.state)
    assert life.generated(tokens=50, finish=FinishReason.STOP, calls=2) == CallTools(2, None)
    states.append(life.state)
    assert life.answered(tokens=20, charged_s=1) == Generate(9_830)
    states.append(life.state)
    assert life.generated(tokens=5, finish=FinishReason.STOP, calls=0) == Finish(StopReason.ANSWERED)
    states.append(life.state)
    assert states == [
        RequestState.PENDING,
        RequestState.RUNNING,
        RequestState.TOOL_CALLING,
        RequestState.RUNNING,
        RequestState.COMPLETED,
    ]
    assert life.usage == Usage(prompt_tokens=100, response_tokens=75, turns=2, tool_calls=2, charged_s=1)


@pytest.mark.parametrize(
    ("limits", "budget"),
    [
        (only(max_turn_tokens=64), 64),
        (only(max_response_tokens=200), 200),
        (only(max_response_tokens=200, max_turn_tokens=64), 64),
        (only(max_model_tokens=150, max_turn_tokens=64), 50),
        (only(max_model_tokens=20_000), 9_900),
    ],
)
def test_turn_budget_is_clamped_before_generating(limits: Limits, budget: int) -> None:
    assert machine(limits).start() == Generate(budget)


def test_later_turns_get_what_is_left() -> None:
    life = machine(only(max_response_tokens=100, max_tool_time_s=10))
    assert life.start() == Generate(100)
    assert life.generated(tokens=60, finish=FinishReason.STOP, calls=1) == CallTools(1, 10)
    assert life.answered(tokens=15, charged_s=4) == Generate(25)
    assert life.generated(tokens=5, finish=FinishReason.STOP, calls=1) == CallTools(1, 6)


ALL = Limits(10, 110, 1, 1, 1.0, None)
ORDER = ["max_response_tokens", "max_model_tokens", "max_turns", "max_tool_calls", "max_tool_time_s"]
REASONS = [
    StopReason.RESPONSE_LENGTH,
    StopReason.MODEL_LENGTH,
    StopReason.TURNS,
    StopReason.TOOL_CALLS,
    StopReason.TOOL_TIME,
]


def test_limits_are_checked_in_the_documented_order() -> None:
    full = Usage(prompt_tokens=100, response_tokens=10, turns=1, tool_calls=1, charged_s=1.0)
    limits = ALL
    seen = []
    for name in ORDER:
        reached = limits.reached(full)
        assert reached is not None
        seen.append(reached)
        limits = dataclasses.replace(limits, **{name: None})
    assert seen == REASONS
    assert limits.reached(full) is None


@pytest.mark.parametrize(("name", "reason"), list(zip(ORDER, REASONS, strict=True)))
def test_each_limit_stops_a_turn_with_calls_before_they_are_run(name: str, reason: StopReason) -> None:
    life = machine(dataclasses.replace(NO_LIMITS, **{name: getattr(ALL, name)}))
    life.start()
    used: Decision = life.generated(tokens=10, finish=FinishReason.STOP, calls=1)
    if name == "max_tool_calls":  # the first call is within the limit; the next turn's is not
        assert used == CallTools(1, None)
        assert isinstance(life.answered(tokens=1, charged_s=0), Generate)
        used = life.generated(tokens=10, finish=FinishReason.STOP, calls=1)
    if name == "max_tool_time_s":  # which only calls use up
        assert used == CallTools(1, 1.0)
        used = life.answered(tokens=1, charged_s=1.0)
    assert used == Finish(reason)
    assert life.state is RequestState.COMPLETED


def test_calls_beyond_the_budget_are_refused_and_the_others_run() -> None:
    life = machine(only(max_tool_calls=3))
    life.start()
    assert life.generated(tokens=1, finish=FinishReason.STOP, calls=2) == CallTools(2, None)
    life.answered(tokens=1, charged_s=0)
    assert life.generated(tokens=1, finish=FinishReason.STOP, calls=4) == CallTools(1, None)
    assert life.usage.tool_calls == 3


@pytest.mark.parametrize(
    ("limits", "tokens", "reason"),
    [
        (only(max_turn_tokens=50), 50, StopReason.TURN_LENGTH),
        (only(max_turn_tokens=50, max_response_tokens=50), 50, StopReason.RESPONSE_LENGTH),
        (only(max_model_tokens=150), 50, StopReason.MODEL_LENGTH),
        (only(max_turn_tokens=50, max_turns=1), 50, StopReason.TURN_LENGTH),
    ],
)
def test_turn_that_was_cut_off_names_the_budget_that_cut_it(limits: Limits, tokens: int, reason: StopReason) -> None:
    life = machine(limits)
    life.start()
    assert life.generated(tokens=tokens, finish=FinishReason.LENGTH, calls=0) == Finish(reason)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (only(max_response_tokens=60), StopReason.RESPONSE_LENGTH),
        (only(max_model_tokens=160), StopReason.MODEL_LENGTH),
    ],
)
def test_answers_that_leave_no_room_for_a_turn_are_not_appended(limits: Limits, reason: StopReason) -> None:
    life = machine(limits)
    life.start()
    life.generated(tokens=40, finish=FinishReason.STOP, calls=1)
    assert life.answered(tokens=20, charged_s=0) == Finish(reason)
    assert life.usage.response_tokens == 40


def test_prompt_that_fills_the_model_ends_before_the_first_turn() -> None:
    life = machine(prompt=50, model=50)
    assert life.start() == Finish(StopReason.MODEL_LENGTH)
    assert life.usage.turns == 0


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_positive_or_none(value: float) -> None:
    for name in Limits.__dataclass_fields__:
        with pytest.raises(ConfigError, match=rf"limits\.{name} is .*, must be positive, or none"):
            only(**{name: value})


SIZES = st.one_of(st.none(), st.integers(1, 60))


@given(
    limits=st.builds(Limits, SIZES, SIZES.map(lambda v: v and v + 20), SIZES, SIZES, st.none(), SIZES),
    steps=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.integers(1, 30)), max_size=20),
)
def test_no_limit_is_ever_exceeded(limits: Limits, steps: list[tuple[float, int, int]]) -> None:
    life = TrajectoryMachine(limits, prompt_tokens=20, max_model_tokens=200)
    decision: Generate | CallTools | Finish = life.start()
    for share, calls, answer in steps:
        if isinstance(decision, Generate):
            assert decision.max_new_tokens >= 1
            tokens = max(1, int(decision.max_new_tokens * share))
            finish = FinishReason.LENGTH if tokens == decision.max_new_tokens else FinishReason.STOP
            decision = life.generated(tokens=tokens, finish=finish, calls=calls)
        elif isinstance(decision, CallTools):
            assert decision.run >= 1
            decision = life.answered(tokens=answer, charged_s=0)
        used = life.usage
        assert used.response_tokens <= (limits.max_response_tokens or 10**9)
        assert used.prompt_tokens + used.response_tokens <= min(200, limits.max_model_tokens or 200)
        assert used.turns <= (limits.max_turns or 10**9)
        assert used.tool_calls <= (limits.max_tool_calls or 10**9)
    assert isinstance(decision, Finish) == (life.state is RequestState.COMPLETED)
