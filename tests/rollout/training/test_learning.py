"""A small policy learns to use the tool: whole training runs, from a reward below 0.2 to one above 0.8.

The real thing at a small size: limiter and executor are processes of their own, the trainer is `fairbox train`, each
right answer costs a program in the sandbox under a lease. `examples.practice` writes the policy and the problems.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rollout.dump import read_dump
from rollout.stack import LocalStack
from tests.rollout.services import executor_status, limiter_status, nothing_left

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
STEPS = {"sync": 20, "async": 24}
"""Trajectories of an asynchronous step are up to three steps old, so it gets some more."""
LAST = 3
"""Steps whose mean reward is that of the end: 192 trajectories."""
LEARNED = 0.8
"""Reward at the end. Sampled at temperature 1, a policy that has learned all ends between 0.88 and 0.97; greedily it
answers every problem."""
RAN = {"ok", "program_error", "time_limit", "resource_limit"}
AHEAD = 3 * 64
"""Trajectories that may have been begun and not trained on when an asynchronous run ends."""
LIMIT = 4
"""Programs that run at once."""
ESTIMATORS = {
    "grpo": ("advantage.estimator=grpo",),
    # The value head begins at 0, so with lam below 1 what succeeds is worth less at its first tokens. Its loss has
    # a small weight because the model under it is small: with 0.5 most of the gradient is that of the values, and the
    # policy forgets what it could do. Whitened, near success, errors of the values would be all that is left. With the
    # learning rate of the others one of six asynchronous runs forgets everything after it has learned it.
    "ppo": (
        *("advantage.estimator=gae", "advantage.lam=1", "advantage.whiten=false", "loss.value_coef=0.01"),
        "update.lr=1e-4",
    ),
}
MODES = {
    "sync": ("max_staleness=0",),
    "async": ("max_staleness=2", "loss.correction.level=token"),
}


def command(practice: Path, out: Path, stack: LocalStack, steps: int, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "rollout.cli", "train"),
        *(f"model={practice / 'model'}", f"data={practice / 'train.jsonl'}", f"eval_data={practice / 'test.jsonl'}"),
        *("env_config.prompt=data", f"out={out}", f"limiter={stack.ports.limiter}", f"executor={stack.ports.executor}"),
        *(f"steps={steps}", f"eval_every={steps}", "eval_n=64", f"save_every={steps}"),
        *("prompts_per_step=8", "samples_per_prompt=8", "concurrency=64", "limits.max_turns=2"),
        *("limits.max_turn_tokens=32", f"tool.rate_limit={LIMIT}", f"tool.num_workers={2 * LIMIT}"),
        *("engine.max_batch=64", "engine.max_model_tokens=256"),
        *("update.lr=1.5e-4", "update.schedule=linear"),
        *words,
    ]


async def trained(practice: Path, out: Path, stack: LocalStack, steps: int, *words: str) -> None:
    # One thread: what other threads would gain on so small a model they lose by waiting for each other.
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        *command(practice, out, stack, steps, *words), cwd=ROOT, env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 560)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_policy_learns_to_use_the_tool(
    practice_dir: Path, tmp_path: Path, estimator: str, mode: str, seed: int
) -> None:
    words = (f"sampling.seed={seed}", *ESTIMATORS[estimator], *MODES[mode])
    async with LocalStack(limiter_args=[f"buckets.code.max_in_flight={LIMIT}"]) as stack:
        await trained(practice_dir, tmp_path, stack, STEPS[mode], *words)
        await nothing_left(stack)
        executor, bucket = await executor_status(stack), (await limiter_status(stack)).buckets[0]
    before, steps = lines(tmp_path)[0], lines(tmp_path)[1:]
    assert [line["step"] for line in steps] == list(range(1, STEPS[mode] + 1))

    assert before["eval/reward"] < 0.2
    assert steps[0]["reward"] < 0.2
    assert sum(line["reward"] for line in steps[-LAST:]) / LAST > LEARNED
    assert steps[-1]["eval/reward"] > 0.9  # problems that nothing was trained on

    assert all(line["masked"] == 0 for line in steps)
    compared = [line["logprob_difference_max"] for line in steps if "logprob_difference_max" in line]
    assert compared
    assert max(compared) < 1e-4

    # Every program that a trajectory tells of ran once, under one lease, and nothing else did, except for trajectories
    # that were begun ahead of the last step.
    ran = sum(executor.outcomes.values())
    told = sum(call["outcome"] in RAN for record in records(tmp_path) for call in record["tool_calls"])
    assert told > LAST * 64 * 0.9
    assert ran == told if mode == "sync" else told <= ran <= told + AHEAD
    assert bucket.granted_total == bucket.released_total >= ran
    assert bucket.expired_total == bucket.rejected_total == 0


def records(out: Path) -> list[dict[str, Any]]:
    return [
        record
        for folder in ("rollouts", "evaluations")
        for path in sorted((out / folder).glob("*.jsonl"))
        for record in read_dump(path)
    ]
