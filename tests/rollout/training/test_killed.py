"""A trainer that is killed, and started again with the same line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairbox.net.ports import free_ports

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
STEPS = 6
TIMED = ("time/", "async/trajectories_per_min", "async/learner_waited", "async/engine_idle")
"""Figures that tell how long things took, which is never the same twice."""
SHARDS = ("shards.count=2", "ray_address=local")


SMALL = ("limits.max_turn_tokens=6", "engine.max_model_tokens=128", "engine.max_batch=1")


def command(model: Path, out: Path, *words: str, service: str = "") -> list[str]:
    small = ("prompts_per_step=2", "samples_per_prompt=3", "concurrency=1")
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
        *(*small, *([f"service.target={service}"] if service else SMALL), *words),
    ]


def started(model: Path, out: Path, *words: str, service: str = "") -> subprocess.Popen[bytes]:
    # One thread: sums in one order, so that what is computed twice is the same bit for bit.
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RUN_OF": str(out)}
    words = tuple(command(model, out, *words, service=service))
    return subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)


def serving(model: Path, out: Path, ports: Sequence[int]) -> subprocess.Popen[bytes]:
    """A rollout service with the rollouts of such a run."""
    listen, health = (f"127.0.0.1:{port}" for port in ports)
    words = ("env=tests.rollout.training.vowels:Vowels", f"model={model}", f"out={out}", "concurrency=1", *SMALL)
    places = (f"listen={listen}", f"health_listen={health}", "sampling.temperature=1")
    return subprocess.Popen(
        [sys.executable, "-m", "rollout", *words, *places],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


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


def test_a_run_over_a_service_is_that_too_whoever_of_them_is_killed(tiny_dir: Path, tmp_path: Path) -> None:
    """Bit for bit the run of one process, which nobody killed, but for the engine's rounding: one that was started
    again has nothing of a prompt in its cache."""
    whole, parts, draws = tmp_path / "whole", tmp_path / "parts", random.Random(5)
    assert started(tiny_dir, whole).wait(300) == 0
    ports = free_ports(2)
    target = f"127.0.0.1:{ports[0]}"
    service = serving(tiny_dir, tmp_path / "service", ports)
    trainer = started(tiny_dir, parts, service=target)
    try:
        for victims, step in (("service", 0), ("trainer", 1), ("service trainer", 2), ("service", 3)):
            until = time.monotonic() + 200
            while not any(line["step"] >= step for line in lines(parts)):
                assert trainer.poll() is None
                assert service.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(draws.random() / 5)
            for process in [each for name, each in (("service", service), ("trainer", trainer)) if name in victims]:
                process.kill()
                process.wait(30)
            if "service" in victims:
                service = serving(tiny_dir, tmp_path / "service", ports)
            if "trainer" in victims:
                trainer = started(tiny_dir, parts, service=target)
        assert trainer.wait(300) == 0
    finally:
        trainer.kill()
        trainer.wait(30)
        service.terminate()
        service.wait(60)
    same(whole, parts, aside=("logprob_difference", "logprob_difference_max"))


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


def same(whole: Path, parts: Path, aside: Sequence[str] = ()) -> None:
    found, wanted = (
        [{k: v for k, v in line.items() if k not in aside} for line in lines(out)] for out in (parts, whole)
    )
    assert [line["step"] for line in wanted] == list(range(STEPS + 1))
    assert found == wanted
    assert sampled(parts) == sampled(whole)
    model = Path("model") / "model.safetensors"
    assert (parts / model).read_bytes() == (whole / model).read_bytes()
