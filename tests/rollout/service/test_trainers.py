"""SkyRL's generator over a rollout service; the service is real, but for its engine. (verl's loop needs verl.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairbox.errors import ConfigError
from rollout.interop.shared import close_shared
from rollout.interop.skyrl.generator import FairboxGenerator
from rollout.service import RolloutTask
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.service.serving import PROBLEMS, Echo, Served, Tier

Make = Callable[..., FairboxGenerator]


@pytest.fixture
def tier(tokenizer: HubTokenizer, chat: ChatTemplate, tmp_path: Path) -> Tier:
    return Tier(tokenizer, chat, tmp_path / "out")


@pytest.fixture
def make(model_dir: Path) -> Make:
    """Makes generators without an engine and without tools."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)

    def made(target: str, **settings: Any) -> FairboxGenerator:
        nowhere = {"executor": "127.0.0.1:1", "limiter": "127.0.0.1:1"}
        return FairboxGenerator(None, tokenizer, {"tool": nowhere, "service": {"target": target}} | settings)

    return made


def batch(count: int, **sampling: Any) -> dict[str, Any]:
    """Rows of SkyRL, two for each problem."""
    asked = [PROBLEMS[index // 2 % len(PROBLEMS)] for index in range(count)]
    return {
        "prompts": [list(task.messages) for task in asked],
        "env_extras": [{"reward_spec": {"ground_truth": task.ground_truth}} for task in asked],
        "sampling_params": {"temperature": 0.7, "top_p": 1.0, "top_k": -1} | sampling,
        "trajectory_ids": [
            SimpleNamespace(instance_id=str(index // 2), repetition_id=index % 2) for index in range(count)
        ],
    }


async def nothing_is_left(served: Served) -> None:
    async with asyncio.timeout(60):
        while any(each.queued + each.running + each.ended for each in served.trajectories.counts().values()):
            await asyncio.sleep(0.01)


async def test_a_service_plays_for_another_trainer(tier: Tier, make: Make, chat: ChatTemplate) -> None:
    async with tier.process() as served, served.client() as other:
        # An earlier life of the trainer had asked for these.
        await other.submit([RolloutTask(str(number), problem=number) for number in range(3)])
        output = await make(served.address).generate(batch(8))
        await nothing_is_left(served)
        assert served.trajectories.totals.ended == 11
        requests = served.engine.requests
        await close_shared()
    schemas = [Echo.default_schema.openai()]
    wanted = [chat.prompt_ids(prompt, schemas) for prompt in batch(8)["prompts"]]
    assert [tuple(ids) for ids in output["prompt_token_ids"]] == [tuple(ids) for ids in wanted]
    assert {request.params.temperature for request in requests} == {0.7, 1.0}
    for ids, mask, logprobs in zip(
        output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True
    ):
        assert len(ids) == len(mask) == len(logprobs)
        assert sum(mask) > 0
    truths = [row["reward_spec"]["ground_truth"] for row in batch(8)["env_extras"]]
    said = [chat.decode_plain(ids) for ids in output["response_ids"]]
    right = [float(text.strip().endswith(f"#### {truth}")) for text, truth in zip(said, truths, strict=True)]
    assert output["rewards"] == right


async def test_it_goes_on_when_the_service_is_started_again(tier: Tier, make: Make) -> None:
    tier.delay_s = 0.02
    async with tier.process() as served:
        address = served.address
        generating = asyncio.create_task(make(address).generate(batch(6)))
        while not served.trajectories.totals.ended:
            await asyncio.sleep(0.01)
    async with tier.process(address=address) as served:
        output = await generating
        await nothing_is_left(served)
        await close_shared()
    assert all(any(mask) for mask in output["loss_masks"])


async def test_a_service_that_is_away_masks_and_room_is_waited_for(
    tier: Tier, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tier.process(max_trajectories=2) as served:
        output = await make(served.address).generate(batch(6))
        assert all(any(mask) for mask in output["loss_masks"])
        await close_shared()
    monkeypatch.setattr("rollout.interop.service._AWAY_S", 0.5)
    output = await make("127.0.0.1:1").generate(batch(2))
    await close_shared()
    assert output["stop_reasons"] == ["infra", "infra"]
    assert not any(any(mask) for mask in output["loss_masks"])


async def test_whoever_stops_waiting_has_nothing_played(tier: Tier, make: Make) -> None:
    tier.delay_s = 600
    async with tier.process() as served:
        generating = asyncio.create_task(make(served.address).generate(batch(4)))
        while len(served.engine.requests) < 4:
            await asyncio.sleep(0.01)
        generating.cancel()
        await asyncio.wait([generating])
        await nothing_is_left(served)
        assert served.trajectories.totals.cancelled == 4
        await close_shared()


async def test_what_the_service_refuses_or_somebody_cancels_is_masked(
    tier: Tier, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.interop.service._ASK_EVERY_S", 0.2)
    tier.delay_s = 600
    async with tier.process() as served, served.client() as other:
        rows = batch(2)
        rows["prompts"][0] = [{"role": "poet", "content": "!"}]
        generating = asyncio.create_task(make(served.address, mask_groups=False).generate(rows))
        while not served.engine.requests:
            await asyncio.sleep(0.01)
        assert await other.cancel([entry.id for entry in served.trajectories._book.running.values()]) == 1
        output = await generating
        await close_shared()
    assert output["stop_reasons"] == ["bad_prompt", "infra"]
    assert not any(any(mask) for mask in output["loss_masks"])


async def test_what_trainer_and_service_have_otherwise_is_told(tier: Tier, make: Make) -> None:
    async with tier.process() as served:
        with pytest.raises(ConfigError, match="top_p or top_k is set"):
            await make(served.address).generate(batch(1, top_p=0.9))
        with pytest.raises(ConfigError, match="the trainer takes 4: lower the service"):
            await make(served.address, limits={"max_response_tokens": 4}).generate(batch(1))
        await close_shared()
