"""A trainer that is killed, and started again with the same line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
STEPS = 6
TIMED = ("time/", "async/trajectories_per_min", "async/learner_waited", "async/engine_idle")
"""Figures that tell how long things took, which is never the same twice."""
SHARDS = ("shards.count=2", "ray_address=local")


def command(model: Path, out: Path, *words: str) -> list[str]:
    small = ("prompts_per_step=2", "samples_per_prompt=3", "limits.max_turn_tokens=6", "engine.max_model_tokens=128")
    alone = ("concurrency=1", "engine.max_batch=1")
    return [
        *(sys.executable, "-m", "rollout.cli", "train", "env=tests.rollout.training.vowels:Vowels", f"model={model}"),
        *(
            f"out={out}",
            f"steps={STEPS}",
            "save_every=2",
            "resume=true",
            "update.lr=0.01",
            "eval_data=x",
            "eval_every=2",
        ),
        *(*small, *alone, *words),
    ]


def started(model: Path, out: Path, *words: str) -> subprocess.Popen[bytes]:
    # One thread: sums in one order, so that what is computed twice is the same bit for bit.
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RUN_OF": str(out)}
    return subprocess.Popen(command(model, out, *words), cwd=ROOT, env=env, stdout=subprocess.DEVNULL)


def lines(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    whole = (
        [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    )
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(TIMED)} for line in whole]


def sampled(out: Path) -> list[list[int]]:
    dumps = [out / "rollouts" / f"{step}.jsonl" for step in range(1, STEPS + 1)]
    return [json.loads(line)["response_ids"] for dump in dumps for line in dump.read_text().splitlines()]


def killed_after(model: Path, out: Path, step: int, wait_s: float, *words: str) -> None:
    """Killed some time after the line of this step was written: in a rollout, an update or a checkpoint."""
    process = started(model, out, *words)
    until = time.monotonic() + 200
    while not any(line["step"] >= step for line in lines(out)):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(wait_s)
    process.send_signal(signal.SIGKILL)
    process.wait(10)


def test_a_run_that_is_killed_again_and_again_is_the_run_that_was_not(tiny_dir: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert started(tiny_dir, whole).wait(300) == 0
    killed_after(tiny_dir, parts, 1, 0.0)
    killed_after(tiny_dir, parts, 2, 0.05)
    killed_after(tiny_dir, parts, 3, 0.2)
    assert started(tiny_dir, parts).wait(300) == 0
    same(whole, parts)


def test_a_run_over_shards_is_that_too_and_leaves_none_of_them(tiny_dir: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert started(tiny_dir, whole, *SHARDS).wait(300) == 0
    killed_after(tiny_dir, parts, 2, 0.0, *SHARDS)
    until = time.monotonic() + 60
    while shards(parts):
        assert time.monotonic() < until, "shards outlive the trainer that was killed"
        time.sleep(0.2)
    process = started(tiny_dir, parts, *SHARDS)
    while not any(line["step"] >= 4 for line in lines(parts)):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(shards(parts)[0], signal.SIGKILL)
    assert process.wait(60) == 1
    assert started(tiny_dir, parts, *SHARDS).wait(300) == 0
    same(whole, parts)
    # And as far as rounding goes it is the run of one process.
    alone = tmp_path / "alone"
    assert started(tiny_dir, alone).wait(300) == 0
    first = lines(whole)[1]
    assert first["grad_norm"] > 0
    assert lines(alone)[1] == pytest.approx(first, rel=1e-4, abs=1e-5)


def shards(out: Path) -> list[int]:
    """The processes that hold parts of a model of runs in `out`: they have the environment of their trainer."""
    mark, found = f"RUN_OF={out}\0".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (path / "cmdline").read_bytes().startswith(b"ray::Shard") and mark in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def same(whole: Path, parts: Path) -> None:
    assert [line["step"] for line in lines(whole)] == list(range(STEPS + 1))
    assert lines(parts) == lines(whole)
    assert sampled(parts) == sampled(whole)
    model = Path("model") / "model.safetensors"
    assert (parts / model).read_bytes() == (whole / model).read_bytes()
