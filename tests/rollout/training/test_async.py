"""Whole runs in which rollouts go on while the weights move, on a small model."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.config import EngineSettings
from rollout.dump import read_dump, trainer_file
from rollout.loop import Limits, TrajectoryResult
from rollout.tokens import SegmentKind

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.algo.advantages import AdvantageSettings  # noqa: E402
from rollout.training.algo.objective import CorrectionSettings, ObjectiveSettings  # noqa: E402
from rollout.training.config import TrainConfig  # noqa: E402
from rollout.training.learner.checkpoints import CheckpointStore  # noqa: E402 - needs torch
from rollout.training.learner.update import UpdateSettings  # noqa: E402
from rollout.training.rollouts.staleness import GroupLedger, StalenessRules, TakenGroup  # noqa: E402
from rollout.training.rollouts.stream import StreamFigures, token_lags  # noqa: E402
from rollout.training.run.run import TrainingRun  # noqa: E402
from tests.rollout.training.runs import finished, lines, vowels_run  # noqa: E402

ROOT = Path(__file__).parents[3]
CONFIG = TrainConfig(
    env="vowels",
    max_staleness=1,
    prompts_per_step=2,
    samples_per_prompt=3,
    concurrency=6,
    steps=6,
    save_every=1,
    eval_every=3,
    limits=Limits(max_turn_tokens=24),
    engine=EngineSettings(max_batch=6, max_model_tokens=128),
    loss=ObjectiveSettings(correction=CorrectionSettings(level="token")),
    update=UpdateSettings(lr=1e-2),
)


def run_of(model_dir: Path, out: Path, **changes: Any) -> TrainingRun:
    return vowels_run(CONFIG, model_dir, out, **changes)


def played(out: Path, steps: int) -> list[list[str]]:
    """The problem of every trajectory that was trained on, by step."""
    return [[record["where"] for record in read_dump(out / "rollouts" / f"{n}.jsonl")] for n in range(1, steps + 1)]


def each_problem_once_a_pass(out: Path, steps: int) -> None:
    found = played(out, steps)
    assert [len(step) for step in found] == [6] * steps
    assert Counter(where for step in found for where in step) == {f"vowels:{n}": 3 * steps // 2 for n in range(4)}


async def test_steps_take_what_ended_first_and_say_how_old_it_is(tiny_dir: Path, tmp_path: Path) -> None:
    assert await finished(run_of(tiny_dir, tmp_path))
    each_problem_once_a_pass(tmp_path, 6)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [*range(7)]
    for line in found[1:]:
        step = line["step"]
        lags: Counter[int] = Counter()
        trained = [json.loads(text) for text in trainer_file(tmp_path, str(step)).read_text().splitlines()]
        for record, theirs in zip(read_dump(tmp_path / "rollouts" / f"{step}.jsonl"), trained, strict=True):
            for part in record["segments"][1:]:
                lags[step - 1 - int(part["weight_version"].removeprefix("step-"))] += part["length"]
            assert theirs["request_id"] == record["request_id"]
            assert len(theirs["trainer_logprobs"]) == len(record["logprobs"])
            if {part["weight_version"] for part in record["segments"][1:]} == {f"step-{step - 1}"}:
                assert theirs["trainer_logprobs"] == pytest.approx(record["logprobs"], abs=1e-4)
        assert line["async/lag_0"] == pytest.approx(lags[0] / lags.total())
        assert line["async/lag_1"] == pytest.approx(lags[1] / lags.total())
        assert min(lags) >= 0
        assert max(lags) <= line["async/staleness_max"]
        if lags[0]:
            assert line["logprob_difference_max"] < 1e-4
        assert line["trained_rows"] == line["trajectories"] == 6
    # Something was played ahead, and weights did move.
    assert sum(line["async/lag_0"] < 1 for line in found[1:]) >= 4
    assert all(line["grad_norm"] > 0 for line in found[1:])
    # None of the groups of the last step was begun before what its passes had begun.
    assert max(line["async/staleness_max"] for line in found[1:]) == 1


async def test_groups_without_a_signal_are_replaced(tiny_dir: Path, tmp_path: Path) -> None:
    """For a problem that nobody solves: ten steps' worth of groups; then the step moves nothing."""
    changes = {"max_staleness": 0, "advantage": AdvantageSettings(equal_groups="replace")}
    assert await finished(run_of(tiny_dir, tmp_path, steps=1, wanted="#", eval_every=9, **changes))
    (first,) = [line for line in lines(tmp_path) if line["step"] == 1]
    assert (first["async/replaced"], first["trained_rows"], first["updates"]) == (20, 0, 0)
    assert len(played(tmp_path, 1)[0]) == 6


def test_figures_of_who_waits_are_of_the_time_since_the_step_before(sampled_results: list[TrajectoryResult]) -> None:
    groups = (TakenGroup(4, 0), TakenGroup(2, 2))
    named = [renamed(result) for result in sampled_results]
    figures = StreamFigures(1)
    figures.begin(now=100.0, engine_busy_s=7.0)
    ledger = GroupLedger(StalenessRules(2, 1, 4, 6))
    ledger.lost = 1
    for since, busy_s, waited_s in ((0.0, 1.0, 4.0), (4.0, 5.0, 0.0)):
        found = figures.taken(
            3, groups, named, ledger, waited_s=waited_s, now=104.0 + since, engine_busy_s=7.0 + busy_s
        )
    assert found["async/lost"] == 0.0  # it was counted in the step before
    assert (found["async/learner_waited"], found["async/engine_idle"]) == (0.0, 0.0)
    assert found["async/trajectories_per_min"] == len(named) * 60 / 4
    assert (found["async/staleness_mean"], found["async/staleness_max"], found["async/late"]) == (1.0, 2.0, 1.0)
    lags = token_lags(named, 3)
    assert lags == {0: 4 + 5 + 6, 2: 3 * 3}  # three turns of each, and a masked one, which does not count
    assert found["async/lag_0"] == lags[0] / lags.total()
    assert found["async/lag_1"] == 0.0
    assert found["async/lag_more"] == lags[2] / lags.total()


def renamed(result: TrajectoryResult) -> TrajectoryResult:
    """First turns of the weights after two steps, second ones of the first weights."""
    sampled = [n for n, part in enumerate(result.trajectory.segments) if part.kind is SegmentKind.SAMPLED]
    segments = tuple(
        replace(part, weight_version="step-2" if n == sampled[0] else "step-0") if n in sampled else part
        for n, part in enumerate(result.trajectory.segments)
    )
    return replace(result, trajectory=replace(result.trajectory, segments=segments))


async def test_a_run_that_was_told_to_end_plays_what_it_had_begun_again(tiny_dir: Path, tmp_path: Path) -> None:
    stop = asyncio.Event()
    work = asyncio.ensure_future(finished(run_of(tiny_dir, tmp_path), stop))
    while len(lines(tmp_path)) < 3:
        assert not work.done()
        await asyncio.sleep(0.01)
    stop.set()
    assert not await work
    found = CheckpointStore(tmp_path / "checkpoints", keep=9).latest()
    assert found is not None
    assert 2 <= found.step < 6
    begun = found.rollouts
    assert begun["problems"] == 4
    assert begun["next"] == 2 * found.step + len(begun["again"])
    assert await finished(run_of(tiny_dir, tmp_path, resume=True))
    each_problem_once_a_pass(tmp_path, 6)
    assert [line["step"] for line in lines(tmp_path)] == [*range(7)]


def test_settings_that_contradict_each_other_are_named() -> None:
    for changes, problem in (
        ({"loss": ObjectiveSettings()}, "loss.correction.level is 'none', must be token, sequence or geometric"),
        ({"keep_groups": 1}, "keep_groups is 1, must be none in training"),
        ({"time_limit_s": 1.0}, "time_limit_s is 1.0, must be none in training"),
        ({"max_staleness": -1}, "max_staleness is -1, must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=problem):
            replace(CONFIG, **changes).validate()
    replace(CONFIG, loss=ObjectiveSettings(anchor="rollout")).validate()


def command(model: Path, out: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "rollout.cli", "train", "env=tests.rollout.training.vowels:Vowels", f"model={model}"),
        *(f"out={out}", "max_staleness=1", "loss.correction.level=token", "resume=true"),
        *("steps=8", "save_every=3", "prompts_per_step=2", "samples_per_prompt=3", "concurrency=6", "update.lr=0.01"),
        *("limits.max_turn_tokens=24", "engine.max_batch=6", "engine.max_model_tokens=128"),
    ]


def ended_after(model: Path, out: Path, step: int, number: signal.Signals) -> int:
    """Starts a run, signals it when the line of this step is there, and waits for its end."""
    process = subprocess.Popen(command(model, out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 200
    while not any(line["step"] >= step for line in lines(out)):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    return process.wait(60)


@pytest.mark.train
def test_a_run_that_is_killed_again_and_again_plays_each_problem_once_a_pass(tiny_dir: Path, tmp_path: Path) -> None:
    assert ended_after(tiny_dir, tmp_path, 2, signal.SIGKILL) == -signal.SIGKILL
    assert not [*(tmp_path / "checkpoints").glob("step-*")]
    assert ended_after(tiny_dir, tmp_path, 4, signal.SIGKILL) == -signal.SIGKILL
    assert ended_after(tiny_dir, tmp_path, 5, signal.SIGTERM) != 0
    found = CheckpointStore(tmp_path / "checkpoints", keep=9).latest()
    assert found is not None
    assert found.step >= 5
    assert found.rollouts["again"]
    assert subprocess.run(command(tiny_dir, tmp_path), cwd=ROOT, check=False, timeout=250).returncode == 0
    each_problem_once_a_pass(tmp_path, 8)
    assert [line["step"] for line in lines(tmp_path)] == [*range(1, 9)]
