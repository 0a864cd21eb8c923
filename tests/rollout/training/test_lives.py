"""Which weights a later life of a run has, and how a life is noted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairbox.errors import FairboxError
from rollout.training.learner.sync import parse_version, version_name
from rollout.training.rollouts.lives import NAME, ONE_LIFE, RunLives, begin_life


def test_a_version_says_which_life_made_it() -> None:
    assert version_name(7) == "step-7"
    assert parse_version("step-7") == (7, 1)
    assert version_name(7, 3) == "step-7.3"
    assert parse_version("step-7.3") == (7, 3)
    assert [parse_version(name) for name in ("", "step-", "step-7.", "initial", "step-7.3.1", "xstep-7")] == [None] * 6


@pytest.mark.parametrize(
    ("version", "has"),
    [
        *(("step-0", True), ("step-10", True), ("step-11", False), ("step-12", False)),
        *(("step-10.2", True), ("step-15.2", True), ("step-16.2", False)),
        *(("step-15.3", True), ("step-99.3", True), ("step-1.4", False), ("step-1.0", False), ("initial", False)),
    ],
)
def test_what_lies_behind_a_checkpoint_is_no_ancestor(version: str, has: bool) -> None:
    assert RunLives("run", (0, 10, 15)).descends_from(version) is has


def test_a_life_that_began_further_back_loses_what_later_ones_made() -> None:
    lives = RunLives("run", (0, 20, 10))
    assert [lives.descends_from(name) for name in ("step-10", "step-15", "step-20.2", "step-10.3")] == [
        *(True, False, False, True)
    ]


def test_a_run_without_others_has_all_its_own() -> None:
    assert ONE_LIFE.descends_from("step-1000")
    assert not ONE_LIFE.descends_from("default")


def test_each_start_is_noted_and_keeps_the_name(tmp_path: Path) -> None:
    first = begin_life(tmp_path, 0)
    second = begin_life(tmp_path, 4)
    assert (first.begins, second.begins) == ((0,), (0, 4))
    assert first.run == second.run
    assert second.life == 2
    (tmp_path / "other").mkdir()
    assert begin_life(tmp_path / "other", 0).run != first.run


@pytest.mark.parametrize("text", ["", "[]", '{"begins": 3}', '{"begins": ["x"]}'])
def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(FairboxError, match=r"lives\.json: is none of ours"):
        begin_life(tmp_path, 0)


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"run": "r", "begins": [0]}))
    (tmp_path / "lives.partial").mkdir()
    with pytest.raises(FairboxError, match=r"lives\.json: can't be written"):
        begin_life(tmp_path, 1)
