"""Names and forms of reward functions."""

from __future__ import annotations

from typing import Required, TypedDict, Unpack

import pytest

from fairbox.errors import ConfigError
from rollout.rewards import RewardServices, Sample, find_reward, reward
from rollout.rewards.arguments import checked_arguments


def test_an_unknown_name_is_an_error_that_lists_what_there_is() -> None:
    @reward("tests/known")
    def known(sample: Sample) -> float:
        return float(len(sample.text))

    assert find_reward("tests/known") is known
    with pytest.raises(ConfigError, match=r"'tests/knwon' is not registered.*tests/known"):
        find_reward("tests/knwon")


def test_a_name_is_taken_once() -> None:
    @reward("tests/twice")
    def first(sample: Sample) -> float:
        return 0.0

    with pytest.raises(ValueError, match="registered already"):

        @reward("tests/twice")
        def second(sample: Sample) -> float:
            return 1.0

    assert find_reward("tests/twice") is first


class How(TypedDict, total=False):
    weight: float
    words: Required[list[str]]


def test_arguments_that_functions_share_are_the_keys_of_a_typed_dict() -> None:
    @reward("tests/shared")
    def shared(sample: Sample, *, least: int = 0, **how: Unpack[How]) -> float:
        return float(least + len(how["words"]))

    assert checked_arguments(shared, {"words": ["a"], "weight": 1}, name="shared", path="r") == {
        "words": ["a"],
        "weight": 1.0,
    }
    for given, problem in (
        ({"words": [], "wieght": 1}, r"r\.wieght is not an argument of shared; did you mean weight\?"),
        ({"words": [], "weight": "1"}, r"r\.weight is '1', must be a valid number"),
        ({"weight": 1}, r"r\.words is not set"),
    ):
        with pytest.raises(ConfigError, match=problem):
            checked_arguments(shared, given, name="shared", path="r")


def test_arguments_must_be_keywords_and_none_may_swallow_others() -> None:
    with pytest.raises(ValueError, match="by position"):

        @reward("tests/defaults")
        def defaults(sample: Sample, services: RewardServices, weight: float = 1.0) -> float:
            return weight

    with pytest.raises(ValueError, match="would swallow"):

        @reward("tests/kwargs")
        def kwargs(sample: Sample, **others: float) -> float:
            return sum(others.values())
