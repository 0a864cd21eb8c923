"""The practice policy learns to use its tool with engine and learner on a GPU, in a real sandbox under a real limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.stack import LocalStack
from tests.rollout.training.test_learning import ESTIMATORS, LAST, LEARNED, LIMIT, MODES, STEPS, lines, trained

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_policy_learns_to_use_the_tool(practice_dir: Path, tmp_path: Path, mode: str) -> None:
    words = ("policy.device=cuda", "engine.device=cuda", *ESTIMATORS["grpo"], *MODES[mode])
    async with LocalStack(limiter_args=[f"buckets.code.max_in_flight={LIMIT}"]) as stack:
        await trained(practice_dir, tmp_path, stack, STEPS[mode], *words)
    before, steps = lines(tmp_path)[0], lines(tmp_path)[1:]
    assert before["eval/reward"] < 0.2
    assert sum(line["reward"] for line in steps[-LAST:]) / LAST > LEARNED
    assert all(line["masked"] == 0 for line in steps)
    compared = [line["logprob_difference_max"] for line in steps if "logprob_difference_max" in line]
    assert compared
    assert max(compared) < 1e-4
