"""The transformers engine on the real model: the contract of all engines, and what only this one promises."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from fairbox.errors import FairboxError, FieldErrors
from rollout.engines import (
    DiskWeights,
    EngineUnavailable,
    GenerationRequest,
    SamplingParams,
    StateWeights,
    VersionSpan,
)
from rollout.engines.local.engine import TransformersEngine
from rollout.tokens import ChatTemplate
from tests.rollout.engine_contract import (
    QUESTIONS,
    EngineContract,
    WeightsContract,
    idle,
    plain_model,
    prompt,
    request,
    running,
    with_weights,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_dir: Path) -> AsyncIterator[TransformersEngine]:
    async with TransformersEngine(model_dir, max_batch=3, max_queued=16, max_model_tokens=1024) as engine:
        yield engine


@pytest.fixture
def open_engine(model_dir: Path) -> Callable[[], TransformersEngine]:
    return lambda: TransformersEngine(model_dir, max_batch=1, max_model_tokens=1024)


@pytest.fixture(scope="module")
def initial_version() -> str:
    return "initial"


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Any:
    return plain_model(model_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def weighted(tiny_dir: Path) -> AsyncIterator[TransformersEngine]:
    async with TransformersEngine(tiny_dir, max_model_tokens=1024) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(weighted: TransformersEngine, tiny_dir: Path) -> AsyncIterator[None]:
    async for _ in with_weights(weighted, tiny_dir, "first"):
        yield


class TestTurns(EngineContract):
    """As every engine."""


class TestWeights(WeightsContract):
    """As every engine."""


async def test_seed_fixes_the_ids_whoever_else_is_in_the_batch(engine: TransformersEngine, chat: ChatTemplate) -> None:
    ids = prompt(chat, QUESTIONS[2])
    alone = await engine.generate(request(ids, temperature=0.8, max_new_tokens=24, seed=7))
    others = [request(prompt(chat, question), max_new_tokens=24, seed=n) for n, question in enumerate(QUESTIONS)]
    together = await asyncio.gather(
        *(engine.generate(each) for each in [*others[:2], request(ids, temperature=0.8, max_new_tokens=24, seed=7)])
    )
    assert together[-1].ids == alone.ids
    other_seed = await engine.generate(request(ids, temperature=0.8, max_new_tokens=24, seed=8))
    assert other_seed.ids != alone.ids


async def test_waiting_too_long_or_in_vain_is_the_engines_failure(
    engine: TransformersEngine, chat: ChatTemplate
) -> None:
    ids = prompt(chat, QUESTIONS[2])
    busy = [asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=600, seed=n))) for n in range(3)]
    await running(engine, 3)
    name = uuid.uuid4().hex
    late = GenerationRequest(name, name, ids, SamplingParams(), queue_timeout_s=0.2)
    with pytest.raises(EngineUnavailable, match=r"waited 0\.\d+ s in the engine's queue"):
        await engine.generate(late)
    waiting = [asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=1, seed=1))) for _ in range(16)]
    while engine.statistics().queued < 16:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineUnavailable, match="queue is full"):
        await engine.generate(request(ids, max_new_tokens=1))
    for task in [*busy, *waiting]:
        task.cancel()
    await asyncio.gather(*busy, *waiting, return_exceptions=True)
    await idle(engine)


async def test_who_waits_follows_although_all_rows_ended_in_one_step(
    engine: TransformersEngine, chat: ChatTemplate
) -> None:
    ids = prompt(chat, QUESTIONS[0])
    asked = [request(ids, max_new_tokens=4, stop_token_ids=()) for _ in range(7)]
    results = await asyncio.wait_for(asyncio.gather(*map(engine.generate, asked)), 60)
    assert [len(result.ids) for result in results] == [4] * 7


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": 11.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"max_new_tokens": 0},
        {"seed": -1},
        {"seed": 2**63},
    ],
)
async def test_sampling_parameters_are_validated(params: dict[str, Any]) -> None:
    with pytest.raises(FieldErrors) as caught:
        SamplingParams(**params)
    assert [error.field for error in caught.value.errors] == list(params)


async def test_weights_that_are_missing_are_not_made_up(tiny_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_dir, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(FairboxError, match=r"has no weights for model\.norm\.weight"):
        async with TransformersEngine(tmp_path / "model"):
            pass


async def test_only_checkpoint_folders_of_the_same_shape_are_taken(engine: TransformersEngine, tmp_path: Path) -> None:
    config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(EngineUnavailable, match="other names or shapes"):
        await engine.update_weights(DiskWeights(tmp_path), version="second")
    with pytest.raises(EngineUnavailable, match="the state: its weights have other names or shapes"):
        await engine.update_weights(StateWeights({}), version="second")
    assert engine.weight_version == "initial"


async def test_the_state_of_a_model_in_this_process_is_copied(
    weighted: TransformersEngine, other_tiny_dir: Path, chat: ChatTemplate, fresh: None
) -> None:
    ids = prompt(chat, QUESTIONS[0])
    await weighted.update_weights(DiskWeights(other_tiny_dir), version="disk")
    wanted = await weighted.generate(request(ids, temperature=0.0, max_new_tokens=8))
    state = {name: value.clone() for name, value in plain_model(other_tiny_dir).state_dict().items()}
    for name in ("state", "again"):
        await weighted.update_weights(StateWeights(state), version=name)
        found = await weighted.generate(request(ids, temperature=0.0, max_new_tokens=8))
        assert (found.ids, found.versions) == (wanted.ids, (VersionSpan(name, 0, 8),))
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
        assert found.cached_tokens == 0
    for value in state.values():
        value.zero_()
    assert (await weighted.generate(request(ids, temperature=0.0, max_new_tokens=8))).ids == wanted.ids
