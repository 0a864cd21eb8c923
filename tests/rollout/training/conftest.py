"""A model of a few thousand weights, a batch whose tokens an engine sampled from it, and a policy that can learn."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import uuid
from pathlib import Path

import pytest

from examples import practice
from examples.practice import write_practice
from rollout.batch import RolloutBatch
from rollout.engines import GenerationRequest, SamplingParams
from rollout.engines.model_store import cache_dir
from rollout.loop import TrajectoryResult
from rollout.tokens import Segment, SegmentKind
from tests.interop.results import result, tool

TEMPERATURE = 0.7
VOCABULARY = 97
PROMPTS = ((5, 6, 7, 8), (9, 10), (11, 12, 13))
TOOL = (14, 15, 16)


async def _sample(model_dir: Path) -> list[TrajectoryResult]:
    from rollout.engines.local.engine import TransformersEngine

    async def turn(engine: TransformersEngine, ids: tuple[int, ...], count: int, seed: int) -> Segment:
        params = SamplingParams(temperature=TEMPERATURE, top_p=0.95, max_new_tokens=count, seed=seed)
        made = await engine.generate(GenerationRequest(uuid.uuid4().hex, "t", ids, params))
        return Segment(SegmentKind.SAMPLED, made.ids, made.logprobs, made.versions[0].version)

    results = []
    async with TransformersEngine(model_dir, max_batch=2, max_model_tokens=64) as engine:
        for n, prompt in enumerate(PROMPTS):
            first = await turn(engine, prompt, 4 + n, n)
            second = await turn(engine, (*prompt, *first.ids, *TOOL), 3, n + 10)
            results.append(result(prompt, first, tool(TOOL), second, uid=str(n // 2), reward=float(n)))
    results.append(result((4, 4), first, uid="1", infra=True))
    return results


@pytest.fixture(scope="session")
def mini_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama without a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).float()
    folder = tmp_path_factory.mktemp("mini") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sampled_results(mini_dir: Path) -> list[TrajectoryResult]:
    """Three trajectories of two turns with a tool's answer between, and one that the service failed."""
    return asyncio.run(_sample(mini_dir))


@pytest.fixture(scope="session")
def sampled_batch(sampled_results: list[TrajectoryResult]) -> RolloutBatch:
    return RolloutBatch.from_results(sampled_results, pad_token_id=2)


@pytest.fixture(scope="session")
def practice_dir() -> Path:
    """A policy that knows the tool and seldom uses it, with problems. It is kept in the cache by what made it."""
    import torch
    import transformers

    sources = sorted(Path(practice.__file__).parent.glob("*.py"))
    made_by = hashlib.sha256(f"{torch.__version__} {transformers.__version__}".encode())
    for source in sources:
        made_by.update(source.read_bytes())
    target = cache_dir() / "practice" / made_by.hexdigest()[:16]
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            torch.set_num_threads(1)
            write_practice(target)
    return target
