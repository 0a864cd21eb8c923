"""Runs whose server is started again in the middle of a step, with the weights that it was first started with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import read_dump
from rollout.envs.base import EnvironmentSetup
from rollout.loop import Task, TrajectoryResult
from rollout.rewards import Reward
from tests.rollout.training.vowels import Vowels, VowelsConfig

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

import rollout.training.run.run as training_run  # noqa: E402 - needs torch
from rollout.engines.weights import DiskWeights  # noqa: E402
from rollout.training.run.trainer import Trainer  # noqa: E402
from tests.rollout.training import test_async, test_trainer  # noqa: E402
from tests.rollout.training.runs import finished, lines  # noqa: E402


@pytest.fixture
def started_again(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vowels:
    """Behind the first trajectory of the second step the engine has the weights of its start."""
    trainers: list[Trainer] = []

    class Known(Trainer):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            trainers.append(self)

    class StartedAgain(Vowels):
        done = False

        async def score(self, task: Task, result: TrajectoryResult) -> Reward:
            if len(lines(tmp_path)) == 1 and not self.done:
                self.done = True
                engine: Any = trainers[-1]._loop.engine
                await engine.update_weights(DiskWeights(tiny_dir), version="initial")
            return await super().score(task, result)

    monkeypatch.setattr(training_run, "Trainer", Known)
    return StartedAgain(VowelsConfig(), EnvironmentSetup())


def test_a_step_leaves_out_what_they_sampled_and_what_follows_has_those_of_the_run(
    tiny_dir: Path, tmp_path: Path, started_again: Vowels
) -> None:
    run = test_trainer.run_of(tiny_dir, tmp_path, steps=3, infra_retries=0, max_masked_share=1.0)
    assert test_trainer.trained(replace(run, environment=started_again, held_out=None))
    assert [line["masked"] > 0 for line in lines(tmp_path)] == [False, True, False]
    failed = [record for record in read_dump(tmp_path / "rollouts" / "2.jsonl") if record["masked"]]
    assert 2 <= len(failed) <= 3  # the others of its group, and what the next one had begun
    assert all(record["cause"] == "INFRA" and record["score"] is None for record in failed)
    assert failed[0]["error"].startswith("weights 'initial' sampled, which are none of this run's")


async def test_an_asynchronous_run_trains_on_none_of_it(tiny_dir: Path, tmp_path: Path, started_again: Vowels) -> None:
    run = test_async.run_of(tiny_dir, tmp_path, infra_retries=0, concurrency=1, steps=4, prompts_per_step=1)
    assert await finished(replace(run, environment=started_again, held_out=None))
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert sum(line["async/lost"] + line["masked"] for line in found) >= 1
    for step in (1, 2, 3, 4):
        for record in read_dump(tmp_path / "rollouts" / f"{step}.jsonl"):
            own = all(part["weight_version"].startswith("step-") for part in record["segments"][1:])
            assert own != record["masked"]
