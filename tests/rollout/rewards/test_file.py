"""Files of rewards: what loads, and a sentence with the path of the key for what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest

from fairbox.errors import ConfigError
from rollout.rewards import AnswerMethod, RewardFault, Sample, load_reward, parse_rewards, reward
from rollout.rewards.arguments import checked_arguments

OWN = "tests.rollout.rewards.own"


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@reward("tests/arguments")
def takes(
    sample: Sample,
    *,
    beta: float = 1.0,
    count: int = 1,
    strict: bool = False,
    generation: Literal["main", "codescout"] = "codescout",
    colour: Colour = Colour.RED,
    names: tuple[str, ...] = (),
    pair: tuple[int, float] = (1, 1.0),
    kinds: frozenset[str] = frozenset(),
    weights: Mapping[str, float] | None = None,
    lists: Sequence[int] | int = 0,
    anything: Any = None,
) -> float:
    return beta


@reward("tests/required")
def requires(sample: Sample, *, url: str) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"beta": 2}, {"beta": 2.0}),
        ({"colour": "blue"}, {"colour": Colour.BLUE}),
        ({"generation": "main"}, {"generation": "main"}),
        ({"names": ["a", "b"], "kinds": ["x"]}, {"names": ("a", "b"), "kinds": frozenset({"x"})}),
        ({"pair": [2, 3]}, {"pair": (2, 3.0)}),
        ({"weights": {"a": 1}}, {"weights": {"a": 1.0}}),
        ({"weights": None, "lists": [1, 2]}, {"weights": None, "lists": [1, 2]}),
        ({"lists": 3, "anything": [{"x": 1}]}, {"lists": 3, "anything": [{"x": 1}]}),
    ],
)
def test_arguments_arrive_as_the_signature_has_them(arguments: dict[str, Any], taken: dict[str, Any]) -> None:
    found = checked_arguments(takes, arguments, name="takes", path="args")
    assert found == taken
    assert [type(value) for value in found.values()] == [type(value) for value in taken.values()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"betta": 1.0}, "args.betta is not an argument of takes; did you mean beta?"),
        ({"xyzzy": 1.0}, "args.xyzzy is not an argument of takes; has: beta, count, strict, generation, colour, names"),
        ({"sample": 1.0}, "args.sample is not an argument of takes"),
        ({"beta": "1"}, "args.beta is '1', must be a valid number"),
        ({"beta": True}, "args.beta is True, must be a valid number"),
        ({"beta": float("nan")}, "args.beta is nan, must be a finite number"),
        ({"count": 1.5}, "args.count is 1.5, must be a valid integer"),
        ({"count": True}, "args.count is True, must be a valid integer"),
        ({"strict": 1}, "args.strict is 1, must be a valid boolean"),
        ({"generation": "mian"}, "args.generation is 'mian', must be 'main' or 'codescout'"),
        ({"colour": "green"}, "args.colour is 'green', must be 'red' or 'blue'"),
        ({"names": "a"}, "args.names is 'a', must be a valid array"),
        ({"names": ["a", 1]}, "args.names[1] is 1, must be a valid string"),
        ({"pair": [1]}, "args.pair is [1], must be complete: 1 is missing"),
        ({"pair": [1, "x"]}, "args.pair[1] is 'x', must be a valid number"),
        ({"weights": {"a": "x"}}, "args.weights.a is 'x', must be a valid number"),
        ({"weights": 3}, "args.weights is 3, must be an object"),
        ({"lists": "x"}, "args.lists is 'x', must be a valid array or a valid integer"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_arguments(takes, arguments, name="takes", path="args")
    assert str(caught.value).startswith(sentence)


FILE = f"""
name: short and right
description: What a test says.
reward:
  - fn: gsm8k
    weight: 2
    args: {{method: flexible, format_score: 0.1}}
  - fn: {OWN}:brevity
    weight: -0.5
    args: {{most: 20}}
  - fn: {OWN}:brevity
    name: short
  - fn: {OWN}:knows_services
"""


async def test_a_file_is_a_composition(tmp_path: Path) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text(FILE)
    composed = load_reward(str(path))
    assert (composed.name, composed.description) == ("short and right", "What a test says.")
    assert [(each.name, each.weight, each.services) for each in composed.entries] == [
        ("gsm8k", 2.0, False),
        ("brevity", -0.5, False),
        ("short", 1.0, False),
        ("knows_services", 1.0, True),
    ]
    assert composed.entries[0].arguments == {"method": AnswerMethod.FLEXIBLE, "format_score": 0.1}
    found = await composed.score(Sample("it is 6", "6"))
    assert found.value == pytest.approx(2.0 - 0.5 * (1 - 7 / 20) + (1 - 7 / 10) + 1.0)
    assert found.parts["gsm8k/correct"] == 1.0


@pytest.mark.parametrize("text", ["- fn: gsm8k\n", "reward: [{fn: gsm8k}]\n", '{"reward": [{"fn": "gsm8k"}]}'])
async def test_the_list_may_stand_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rewards.yml"
    path.write_text(text)
    assert (await load_reward(str(path)).score(Sample("#### 6", "6"))).value == 1.0


async def test_a_name_or_a_function_alone_is_one_too() -> None:
    assert (await load_reward("gsm8k").score(Sample("#### 6", "6"))).parts == {
        "gsm8k": 1.0,
        "gsm8k/correct": 1.0,
        "gsm8k/answered": 1.0,
    }
    assert (await load_reward(f"{OWN}:brevity").score(Sample("", "6"))).value == 1.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "reward must be a list of functions, each with fn"),
        ("reward: []", "reward must be a list of functions, each with fn"),
        ("reward: {fn: gsm8k}", "reward must be a list of functions"),
        ("rewards: [{fn: gsm8k}]", "rewards is not a key; did you mean reward?"),
        ("reward: [{fn: gsm8k}]\ntools: [terminal]", "tools is not a key; has: reward, name, description"),
        ("reward: [{fn: gsm8k}]\nname: 3", "name is 3, must be a text"),
        ("reward: [gsm8k]", "reward[0] is 'gsm8k', must be a mapping with fn"),
        ("reward: [{weight: 1.0}]", "reward[0].fn is None, must be the name of a function"),
        ("reward: [{fn: gsm9k}]", "reward[0].fn is 'gsm9k': reward 'gsm9k' is not registered, must be one of: "),
        ("reward: [{fn: gsm8k, wieght: 2}]", "reward[0].wieght is not a key; did you mean weight?"),
        ("reward: [{fn: gsm8k, weight: heavy}]", "reward[0].weight is 'heavy', must be a finite number"),
        ("reward: [{fn: gsm8k, weight: .nan}]", "reward[0].weight is nan, must be a finite number"),
        ("reward: [{fn: gsm8k, weight: true}]", "reward[0].weight is True, must be a finite number"),
        ("reward: [{fn: gsm8k, args: [1]}]", "reward[0].args is [1], must be a mapping"),
        ("reward: [{fn: gsm8k, name: ''}]", "reward[0].name is '', must be a text"),
        (
            "reward: [{fn: gsm8k}, {fn: tests/arguments, args: {bta: 0.5}}]",
            "reward[1].args.bta is not an argument of tests/arguments; did you mean beta?",
        ),
        (
            "reward: [{fn: gsm8k, args: {beta: 1}}]",
            "reward[0].args.beta is not an argument of gsm8k; has: method",
        ),
        ("reward: [{fn: tests/required}]", "reward[0].args.url is not set, and tests/required has no default for it"),
        ("reward: [{fn: gsm8k}, {fn: gsm8k}]", "reward[1] has the name 'gsm8k', as one before; give it a name"),
        ("reward: [{fn: 'nowhere:f'}]", "reward[0].fn is 'nowhere:f': No module named 'nowhere'"),
        ("reward: [{fn: 'os:nothing'}]", "reward[0].fn is 'os:nothing': module 'os' has no attribute 'nothing'"),
        ("reward: [{fn: 'os:sep'}]", "reward[0].fn is 'os:sep': sep of os is no function"),
        (
            f"reward: [{{fn: '{OWN}:of_two_texts'}}]",
            f"reward[0].fn is '{OWN}:of_two_texts': reward '{OWN}:of_two_texts': the second parameter is truth",
        ),
        ("3", "must be a mapping or a list"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_path(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_reward(str(path))
    assert str(caught.value).startswith(f"{path}: {sentence}")


def test_a_file_that_is_no_yaml_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "rewards.yaml"
    path.write_text("reward: [")
    with pytest.raises(ConfigError) as caught:
        load_reward(str(path))
    assert str(caught.value).startswith(f"{path}, line 2, column 1: ")


def test_a_name_that_is_none_is_named_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"^reward is 'gsm9k': reward 'gsm9k' is not registered"):
        load_reward("gsm9k")
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        load_reward("absent.yaml")


async def test_parts_that_clash_are_an_error_that_says_so() -> None:
    composed = parse_rewards([{"fn": "gsm8k"}, {"fn": "gsm8k", "name": "gsm8k/correct"}])
    with pytest.raises(RewardFault, match="two functions give a part of the name 'gsm8k/correct'"):
        await composed.score(Sample("#### 6", "6"))
