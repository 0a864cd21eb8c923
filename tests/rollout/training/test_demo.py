"""Statements of `make train-demo` about a run match the run's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.train_demo.__main__ import main
from examples.train_demo.curve import draw, read_figures, rise_of
from examples.train_demo.sums import Sums, SumsConfig, write_sums
from rollout.envs import EnvironmentSetup


def test_the_last_quarter_is_measured_against_the_first() -> None:
    rise = rise_of([0.1, 0.3, 0.5, 0.5, 0.5, 0.5, 0.7, 0.9])
    assert [rise.first, rise.last] == pytest.approx([0.2, 0.8])
    # Variance 0.02 in each quarter, of two steps each: sqrt((0.02 + 0.02) / 2).
    assert rise.error == pytest.approx(0.02**0.5)
    assert rise.errors == pytest.approx(0.6 / 0.02**0.5)
    assert rise_of([0.5] * 8).errors == 0.0
    assert rise_of([0.5] * 4 + [0.25] * 4).errors == float("-inf")
    with pytest.raises(ValueError, match="7 steps, must be at least 8"):
        rise_of([0.5] * 7)


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    lines: list[dict[str, float | None]] = [{"step": 0, "eval/reward": 0.1}]
    lines += [{"step": n, "reward": n / 10, "reward_std": 0.3, "trajectories": 8.0} for n in range(1, 9)]
    lines.append({"step": 9, "reward": None, "reward_std": None, "trajectories": 8.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = read_figures(tmp_path / "metrics.jsonl")
    draw(figures, tmp_path / "curve.png", title="t")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_held_out_sums_are_not_trained_on(tmp_path: Path) -> None:
    train, held_out = tmp_path / "t.jsonl", tmp_path / "h.jsonl"
    write_sums(train, held_out, largest=9, count=10, seed=1)
    of_train = {task.uid for task in Sums(SumsConfig(), EnvironmentSetup(data=train)).tasks()}
    of_held_out = {task.uid for task in Sums(SumsConfig(), EnvironmentSetup(data=held_out)).tasks()}
    assert (len(of_train), len(of_held_out), of_train & of_held_out) == (71, 10, set())
    task = Sums(SumsConfig(), EnvironmentSetup(data=train, limit=1)).tasks()[0]
    a, b = task.uid.split("+")
    assert task.ground_truth == str(int(a) + int(b))


def test_a_word_that_is_no_setting_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps"]) == 2
    assert "'steps', must be key=value" in capsys.readouterr().err
