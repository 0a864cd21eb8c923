"""The engine in this process on a GPU: exact logprobs, seeds that mean the same, and weights pushed from a learner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollout.batch import RolloutBatch
from rollout.engines import GenerationResult
from tests.rollout.engine_contract import CLOSE, cover, difference, plain_model, request, running, teacher_forced
from tests.rollout.training.conftest import PROMPTS
from tests.rollout.training.test_learner import learner

torch = pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.engines.local.engine import TransformersEngine  # noqa: E402 - needs torch
from rollout.engines.weights import DiskWeights, StateWeights  # noqa: E402
from rollout.training import PolicySettings  # noqa: E402

pytestmark = pytest.mark.gpu

LONG = 240
"""Ids of a turn that still runs when the weights come."""


async def sampled(engine: TransformersEngine, **params: Any) -> list[GenerationResult]:
    """A turn of each prompt, of different lengths, beside each other."""
    asked = [request(ids, max_new_tokens=8 + 9 * n, seed=n, **params) for n, ids in enumerate(PROMPTS)]
    return list(await asyncio.gather(*map(engine.generate, asked)))


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.9, 20)])
async def test_logprobs_are_those_of_the_cpu(mini_dir: Path, temperature: float, top_p: float, top_k: int) -> None:
    params = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    async with TransformersEngine(mini_dir, device="cuda", max_batch=2, max_model_tokens=64) as engine:
        found = await sampled(engine, **params)
        assert [each.ids for each in await sampled(engine, **params)] == [each.ids for each in found]
        greedy = await sampled(engine, temperature=0)
        longer = (*PROMPTS[0], *found[0].ids, 14, 15)
        again = await engine.generate(request(longer, max_new_tokens=8, seed=9))
        assert again.cached_tokens == len(PROMPTS[0]) + len(found[0].ids) - 1
    reference = plain_model(mini_dir)
    for ids, result in zip(PROMPTS, found, strict=True):
        assert difference(reference, ids, result, temperature) < CLOSE
    assert difference(reference, longer, again) < CLOSE
    async with TransformersEngine(mini_dir, max_batch=2, max_model_tokens=64) as engine:
        assert [each.ids for each in await sampled(engine, temperature=0)] == [each.ids for each in greedy]


@pytest.mark.parametrize("way", ["state", "folder"])
async def test_a_turn_goes_on_under_weights_that_a_learner_pushes(
    mini_dir: Path, sampled_batch: RolloutBatch, tmp_path: Path, way: str
) -> None:
    made = learner(mini_dir, PolicySettings(device="cuda"))
    made.step(sampled_batch)
    made.policy.write(tmp_path / "model")
    source = StateWeights(made.policy.state()) if way == "state" else DiskWeights(tmp_path / "model")
    old, new = plain_model(mini_dir), plain_model(tmp_path / "model")
    async with TransformersEngine(mini_dir, device="cuda", max_batch=2) as engine:
        task = asyncio.ensure_future(engine.generate(request(PROMPTS[0], max_new_tokens=LONG, seed=1)))
        await running(engine, 1)
        await engine.update_weights(source, version="second")
        result = await task
        fresh = await engine.generate(request(PROMPTS[1], max_new_tokens=16, seed=2))
    assert [span.version for span in result.versions] == ["initial", "second"]
    assert cover(result) == list(range(LONG))
    cut = result.versions[0].end
    before, after = (
        (teacher_forced(model, PROMPTS[0], result, 1.0) - torch.tensor(result.logprobs)).abs() for model in (old, new)
    )
    assert before[:cut].max() < CLOSE < before[cut:].median()
    assert after[cut:].max() < CLOSE < after[:cut].median()
    assert difference(new, PROMPTS[1], fresh) < CLOSE
