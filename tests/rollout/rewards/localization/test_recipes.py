"""The recipes that are shipped load, and give a perfect trajectory what their descriptions say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import rollout
from rollout.rewards import Sample, read_rewards
from tests.rollout.rewards.localization.samples import answered, call, finished, place

RECIPES = Path(rollout.__file__).parent / "envs" / "code_search" / "recipes"
BLOCK = "```\na.py\nclass: C\nfunction: m\nfunction: n\n\nb.py\nfunction: f\n```"
CALLS = tuple(call(turn, command=f"ls {turn} {n}") for turn in (1, 2, 3) for n in range(5))
FINISHED = finished(place("a.py", "C", "m"), place("a.py", "C", "n"), place("b.py", None, "f"), before=3)
SUBMITTED = call(1, "result", file_paths=["a.py", "b.py"])
LINES = "<final_answer>\na.py:1-2\nb.py:3\n</final_answer>"


def said(text: str) -> Sample:
    """The text after three turns of five calls each."""
    return dataclasses.replace(answered(text, turns=4), tool_calls=CALLS)


MOST = {
    "agentic_code_search": (said(BLOCK), 3 + 15 / 4 + 1),
    "codescout_14b": (FINISHED, 4),
    "codescout_4b": (FINISHED, 3),
    "cosine": (said(BLOCK), 3.4567086 + 5),
    "file_lines": (said(LINES), 2.2),
    "multilevel_f05": (said(BLOCK), 8),
    "scaled_f1": (said(BLOCK), 1),
    "verifiers_files": (said("<files>\na.py\nb.py\n</files>"), 3),
    "verifiers_result": (
        dataclasses.replace(said(""), tool_calls=(call(1, "result", file_paths=["a.py", "b.py"]),)),
        5,
    ),
    "weighted_f1": (said(BLOCK), 3.75),
}


@pytest.mark.parametrize("name", MOST)
async def test_a_perfect_trajectory_gets_the_most(name: str) -> None:
    recipe = read_rewards(RECIPES / f"{name}.yaml")
    sample, most = MOST[name]
    assert recipe.name == name
    reward = await recipe.score(sample)
    assert reward.value == pytest.approx(most, abs=1e-6)


def test_every_recipe_loads() -> None:
    found = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    assert set(MOST) <= set(found)
    for name in found:
        assert read_rewards(RECIPES / f"{name}.yaml").description


async def test_nothing_found_and_nothing_said() -> None:
    for name in ("codescout_4b", "codescout_14b", "file_lines", "verifiers_files", "verifiers_result"):
        assert (await read_rewards(RECIPES / f"{name}.yaml").score(answered("I don't know."))).value == 0
    silent = await read_rewards(RECIPES / "agentic_code_search.yaml").score(answered(""))
    assert silent.value == -10
    assert silent.parts["empty_answer_penalty/empty"] == 1
