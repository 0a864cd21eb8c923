"""A trainer that is killed, and started again with the same line."""

from __future__ import annotations

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


def command(model: Path, out: Path) -> list[str]:
    small = ("prompts_per_step=2", "samples_per_prompt=3", "limits.max_turn_tokens=6", "engine.max_model_tokens=128")
    alone = ("concurrency=1", "engine.max_batch=1", "engine.threads=1")
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
        *(*small, *alone),
    ]


def started(model: Path, out: Path) -> subprocess.Popen[bytes]:
    # One thread: sums in one order, so that what is computed twice is the same bit for bit.
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(command(model, out), cwd=ROOT, env=env, stdout=subprocess.DEVNULL)


def lines(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    whole = (
        [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    )
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in whole]


def sampled(out: Path) -> list[list[int]]:
    dumps = [out / "rollouts" / f"{step}.jsonl" for step in range(1, STEPS + 1)]
    return [json.loads(line)["response_ids"] for dump in dumps for line in dump.read_text().splitlines()]


def killed_after(model: Path, out: Path, step: int, wait_s: float) -> None:
    """Killed some time after the line of this step was written: in a rollout, an update or a checkpoint."""
    process = started(model, out)
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
    assert [line["step"] for line in lines(whole)] == list(range(STEPS + 1))
    assert lines(parts) == lines(whole)
    assert sampled(parts) == sampled(whole)
    model = Path("model") / "model.safetensors"
    assert (parts / model).read_bytes() == (whole / model).read_bytes()
