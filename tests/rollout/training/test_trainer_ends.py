"""Runs that end between a step's update and its line: in an evaluation, or because something can't be written."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import DumpError, read_dump
from rollout.loop import Task
from tests.rollout.training.vowels import Hampered

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.learner.checkpoints import CheckpointStore  # noqa: E402 - needs torch
from rollout.training.learner.learner import Diverged, Learner  # noqa: E402
from tests.rollout.training.runs import finished, lines  # noqa: E402
from tests.rollout.training.test_trainer import run_of, trained, untimed  # noqa: E402


def saved(out: Path) -> int:
    found = CheckpointStore(out / "checkpoints", keep=9).latest()
    return 0 if found is None else found.step


def same_as_one_that_was_not(tiny_dir: Path, tmp_path: Path, parts: Path) -> None:
    assert trained(run_of(tiny_dir, parts, resume=True))
    assert trained(run_of(tiny_dir, tmp_path / "whole"))
    assert untimed(parts) == untimed(tmp_path / "whole")
    assert ["eval/reward" in line for line in lines(parts)] == [True, False, True, False, True]
    for step in (0, 2, 4):
        assert len([*read_dump(parts / "evaluations" / f"{step}.jsonl")]) == 1


def test_an_evaluation_that_was_interrupted_is_made_up_for(tiny_dir: Path, tmp_path: Path) -> None:
    stop, out = asyncio.Event(), tmp_path / "parts"

    async def before(task: Task) -> None:
        if len(lines(out)) == 2:
            stop.set()
            await asyncio.sleep(600)

    assert not asyncio.run(finished(replace(run_of(tiny_dir, out), held_out=Hampered(before, 1)), stop))
    assert ([line["step"] for line in lines(out)], saved(out)) == ([0, 1, 2], 2)
    same_as_one_that_was_not(tiny_dir, tmp_path, out)


def test_a_step_has_its_line_also_where_its_evaluation_fails(tiny_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    (out / "evaluations").mkdir(parents=True)
    (out / "evaluations" / "2.jsonl").touch()
    with pytest.raises(DumpError, match=r"2\.jsonl: exists, and dumps are not overwritten"):
        trained(run_of(tiny_dir, out))
    assert ([line["step"] for line in lines(out)], saved(out)) == ([0, 1, 2], 2)
    same_as_one_that_was_not(tiny_dir, tmp_path, out)


def test_a_dump_that_can_not_be_written_ends_a_run_with_what_was_learned(tiny_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "2.jsonl").touch()
    with pytest.raises(DumpError, match=r"2\.jsonl: exists, and dumps are not overwritten"):
        trained(run_of(tiny_dir, tmp_path, save_every=100))
    assert saved(tmp_path) == 1


def test_what_diverged_is_written_off_the_loop_as_other_checkpoints_are(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of gigabytes takes minutes to write, in which a signal is to be heard and figures are to be served."""
    step, save, written = Learner.step, CheckpointStore.save, []

    def poisoned(self: Learner, batch: Any) -> dict[str, float]:
        if self.steps_done == 1:
            batch = replace(batch, rewards=batch.rewards * float("nan"))
        return step(self, batch)

    def watched(self: CheckpointStore, *words: Any, **options: Any) -> Path:
        written.append((options.get("name", "step"), threading.current_thread() is threading.main_thread()))
        return save(self, *words, **options)

    monkeypatch.setattr(Learner, "step", poisoned)
    monkeypatch.setattr(CheckpointStore, "save", watched)
    with pytest.raises(Diverged):
        trained(run_of(tiny_dir, tmp_path))
    assert written == [("step", False), ("diverged", False)]
