"""A policy learns over services of which one is killed every five seconds, the trainer itself among them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from fairbox.net.ports import free_ports
from rollout import stack as stacks
from rollout.stack import LocalStack
from tests.rollout.kept import KeptProcess, listens
from tests.rollout.training.test_learning import LAST, LEARNED, lines

pytestmark = [pytest.mark.train, pytest.mark.soak, pytest.mark.timeout(3600)]

STEPS = 20
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
EVERY_S = 5.0
"""Seconds between kills, unless a service takes longer to start: nobody gets anywhere who ends before he begins."""


async def kill(
    stack: LocalStack, processes: dict[str, KeptProcess], every_s: float, kills: collections.Counter[str]
) -> None:
    draws = random.Random(1)
    while True:
        await asyncio.sleep(every_s)
        victim = draws.choice([*processes, "limiter", "executor_service"])
        if victim in processes:
            kills[victim] += processes[victim].kill()
            continue
        with contextlib.suppress(ProcessLookupError):  # it is about to be started again
            os.kill(stack.pid(victim), signal.SIGKILL)
            kills[victim] += 1


async def test_a_policy_learns_although_one_process_is_killed_every_five_seconds(
    practice_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_RESTARTS", 10**6)
    data, out, (listen, health) = tmp_path / "all.jsonl", tmp_path / "run", free_ports(2)
    data.write_text("".join((practice_dir / f"{each}.jsonl").read_text() for each in ("train", "test")))
    model, target = f"model={practice_dir / 'model'}", f"127.0.0.1:{listen}"
    kills, results = collections.Counter[str](), f"results_dir={tmp_path / 'results'}"
    async with LocalStack(executor_args=["languages=python", results]) as stack, stack.kept():
        service = KeptProcess(
            [
                *(sys.executable, "-m", "rollout", "env=gsm8k", model, f"data={data}", "env_config.prompt=data"),
                *(f"out={tmp_path / 'service'}", f"listen={target}", f"health_listen=127.0.0.1:{health}"),
                *(f"limiter={stack.ports.limiter}", f"executor={stack.ports.executor}", "metrics_listen="),
                *("concurrency=64", "limits.max_turns=2", "limits.max_turn_tokens=32", "infra_retries=10"),
                *("engine.max_batch=64", "engine.max_model_tokens=256", "sampling.temperature=1"),
            ],
            ONE_THREAD,
        )
        trainer = KeptProcess(
            [
                *(sys.executable, "-m", "rollout.cli", "train", model, f"data={practice_dir / 'train.jsonl'}"),
                *(f"eval_data={practice_dir / 'test.jsonl'}", "env_config.prompt=data", f"out={out}", "resume=true"),
                *(f"steps={STEPS}", f"eval_every={STEPS}", "eval_n=64", "save_every=1", f"service.target={target}"),
                *("prompts_per_step=8", "samples_per_prompt=8", "concurrency=64", "max_staleness=0"),
                *("update.lr=1.5e-4", "update.schedule=linear"),
            ],
            ONE_THREAD,
        )
        began = time.monotonic()
        async with service.kept(), trainer.kept() as training:
            await listens(target)
            every_s = max(EVERY_S, time.monotonic() - began)
            killing = asyncio.create_task(kill(stack, {"service": service, "trainer": trainer}, every_s, kills))
            await asyncio.wait([training, killing], return_when=asyncio.FIRST_COMPLETED)
            killing.cancel()
            await asyncio.wait([killing])
    assert not trainer.failures
    assert not service.failures
    assert len(kills) == 4
    steps = {line["step"]: line for line in lines(out)}
    assert [*steps] == [*range(STEPS + 1)]
    assert steps[0]["eval/reward"] < 0.2
    assert sum(steps[STEPS - back]["reward"] for back in range(LAST)) / LAST > LEARNED
    assert steps[STEPS]["eval/reward"] > 0.9
    assert all(line["masked"] == 0 for line in [*steps.values()][1:])
