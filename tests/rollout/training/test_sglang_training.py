"""Training whose rollouts a real sglang server samples, which reads each step's weights from a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollout.config import EngineSettings
from rollout.dump import read_dump
from rollout.dump_check import check_dump
from rollout.engines import DiskWeights, GenerationRequest, SamplingParams
from rollout.engines.sglang.engine import SglangEngine
from rollout.engines.sglang.launch import local_servers
from rollout.loop import Limits
from tests.rollout.engine_contract import plain_model
from tests.rollout.sglang_servers import on_cpu

pytest.importorskip("torch", reason="torch is not installed (extra `engine`)")

from rollout.training.config import TrainConfig
from rollout.training.learner.policy import PolicySettings
from rollout.training.learner.update import UpdateSettings
from tests.rollout.training.runs import finished, lines, vowels_run

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.sglang, pytest.mark.timeout(900)]

CLOSE = 1e-4
"""Between logprobs of trainer and engine, both in float32."""
STEPS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tiny_dir: Path) -> AsyncIterator[str]:
    async with local_servers(on_cpu(tiny_dir)) as urls:
        yield urls["replica-0"]


async def trained(url: str, model_dir: Path, out: Path, policy: PolicySettings) -> list[dict[str, Any]]:
    config = TrainConfig(
        env="vowels",
        prompts_per_step=2,
        samples_per_prompt=4,
        steps=STEPS,
        limits=Limits(max_turn_tokens=12),
        engine=EngineSettings(kind="sglang", urls=[url]),
        policy=policy,
        update=UpdateSettings(lr=1e-2),
    )
    assert await finished(replace(vowels_run(config, model_dir, out), held_out=None))
    return lines(out)


@pytest.mark.parametrize(
    "policy", [PolicySettings(), PolicySettings(lora_rank=4)], ids=["all weights", "adapters, merged"]
)
async def test_each_step_is_sampled_by_the_weights_that_were_trained(
    url: str, tiny_dir: Path, tmp_path: Path, policy: PolicySettings
) -> None:
    lines = await trained(url, tiny_dir, tmp_path, policy)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert (line["masked"], line["trajectories"]) == (0, 8)
        assert line["logprob_difference_max"] < CLOSE
        assert line["grad_norm"] > 0
        records = list(read_dump(tmp_path / "rollouts" / f"{line['step']}.jsonl"))
        versions = [part["weight_version"] for record in records for part in record["segments"][1:]]
        assert versions == [f"step-{line['step'] - 1}"] * 8  # the first sampled token on
    # The first step was sampled by the model as it was, the second by another one: what was learned got there.
    first = await asyncio.to_thread(check_dump, tmp_path / "rollouts" / "1.jsonl", tiny_dir)
    second = await asyncio.to_thread(check_dump, tmp_path / "rollouts" / "2.jsonl", tiny_dir)
    assert first.max_logprob_difference < CLOSE, first.worst
    assert second.max_logprob_difference > 100 * CLOSE
    assert not list((tmp_path / "weights").iterdir())


async def test_the_last_weights_are_those_of_the_model_that_is_written(
    url: str, tiny_dir: Path, tmp_path: Path
) -> None:
    """The server keeps what it was given before the last step; the model that is written is one update further."""
    await trained(url, tiny_dir, tmp_path, PolicySettings())
    async with SglangEngine(url, vocab_size=49152) as engine:
        assert engine.weight_version == f"step-{STEPS - 1}"
        await engine.update_weights(DiskWeights((tmp_path / "model").absolute()), version="written")
        params = SamplingParams(temperature=0, max_new_tokens=8)
        found = await engine.generate(GenerationRequest("0" * 32, "t", (1, 2, 3, 4), params))
    import torch

    model = plain_model(tmp_path / "model")
    ids = torch.tensor([[1, 2, 3, 4, *found.ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0, 3:-1].float(), -1)
    wanted = [float(logprobs[n, token]) for n, token in enumerate(found.ids)]
    assert list(found.logprobs) == pytest.approx(wanted, abs=CLOSE)
