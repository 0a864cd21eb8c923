"""The transformers engine on the real model, against transformers' own forward pass."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from fairbox.errors import FieldErrors
from rollout.engines import EngineUnavailable, FinishReason, GenerationRequest, GenerationResult, SamplingParams
from rollout.engines.transformers import TransformersEngine
from rollout.tokens import ChatTemplate

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTIONS = (
    "Hi.",
    "What is the capital of France? Answer in one sentence.",
    "Count from one to ten, then name three colours and say which of them you like best.",
    "Why?",
    "Write a Python function that adds two numbers.",
    "A train travels 180 kilometres in 3 hours. How far does it travel in 7 hours? " * 4,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_dir: Path) -> AsyncIterator[TransformersEngine]:
    async with TransformersEngine(model_dir, max_batch=3, max_queued=16, max_model_tokens=1024) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


def prompt(chat: ChatTemplate, question: str) -> tuple[int, ...]:
    return chat.prompt_ids([{"role": "user", "content": question}])


def request(ids: Sequence[int], **params: Any) -> GenerationRequest:
    name = uuid.uuid4().hex
    return GenerationRequest(name, name, tuple(ids), SamplingParams(**params), queue_timeout_s=60)


@torch.inference_mode()
def teacher_forced(model: Any, ids: Sequence[int], result: GenerationResult, temperature: float) -> torch.Tensor:
    whole = torch.tensor([[*ids, *result.ids]])
    logits = model(whole, use_cache=False).logits[0, len(ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(result.ids)[:, None])[:, 0]


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.9, 20)])
async def test_logprobs_are_those_of_a_teacher_forced_pass_through_joins_and_leaves(
    engine: TransformersEngine, chat: ChatTemplate, reference: Any, temperature: float, top_p: float, top_k: int
) -> None:
    # More requests than rows, uneven prompts and lengths: rows join and leave while others run.
    wanted = [
        request(
            prompt(chat, question),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_new_tokens=8 + 7 * index,
            stop_token_ids=chat.stop_token_ids,
            seed=index,
        )
        for index, question in enumerate(QUESTIONS)
    ]
    results = await asyncio.gather(*(engine.generate(each) for each in wanted))
    for asked, result in zip(wanted, results, strict=True):
        assert 1 <= len(result.ids) == len(result.logprobs) <= asked.params.max_new_tokens
        expected = teacher_forced(reference, asked.input_ids, result, temperature)
        assert (expected - torch.tensor(result.logprobs)).abs().max() < 1e-4
    assert engine.statistics().running == engine.statistics().queued == 0


async def test_greedy_turn_stops_at_the_stop_token_which_is_returned(
    engine: TransformersEngine, chat: ChatTemplate, reference: Any
) -> None:
    ids = prompt(chat, QUESTIONS[1])
    result = await engine.generate(
        request(ids, temperature=0, max_new_tokens=30, stop_token_ids=chat.stop_token_ids, seed=0)
    )
    assert chat.turn_text(result.ids) == "The capital of France is Paris."
    assert result.ids[-1] == chat.end_of_turn
    assert result.finish is FinishReason.STOP
    expected = teacher_forced(reference, ids, result, 1.0)
    assert (expected - torch.tensor(result.logprobs)).abs().max() < 1e-4


async def test_turn_without_stop_token_ends_at_its_length(engine: TransformersEngine, chat: ChatTemplate) -> None:
    result = await engine.generate(request(prompt(chat, QUESTIONS[1]), temperature=0, max_new_tokens=4))
    assert len(result.ids) == 4
    assert result.finish is FinishReason.LENGTH
    assert [(span.version, span.start, span.end) for span in result.versions] == [("initial", 0, 4)]


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


async def test_context_that_extends_an_earlier_one_is_not_computed_again(
    engine: TransformersEngine, chat: ChatTemplate, reference: Any
) -> None:
    ids = prompt(chat, "Name a fruit, please, and say nothing else than its name.")
    first = await engine.generate(request(ids, max_new_tokens=6, seed=1))
    longer = (*ids, *first.ids, *chat.between_turns(["42"], ended=False))
    second = await engine.generate(request(longer, max_new_tokens=12, seed=2))
    assert second.cached_tokens == len(ids) + len(first.ids) - 1  # the last id's own keys were never needed
    expected = teacher_forced(reference, longer, second, 1.0)
    assert (expected - torch.tensor(second.logprobs)).abs().max() < 1e-4


async def test_cancelled_request_leaves_its_row(engine: TransformersEngine, chat: ChatTemplate) -> None:
    before = engine.statistics()
    task = asyncio.ensure_future(engine.generate(request(prompt(chat, QUESTIONS[2]), max_new_tokens=900)))
    while engine.statistics().running == 0:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while engine.statistics().running:
        await asyncio.sleep(0.01)
    assert engine.statistics().aborted == before.aborted + 1
    assert engine.statistics().finished == before.finished


async def test_time_limit_returns_what_there_is(engine: TransformersEngine, chat: ChatTemplate) -> None:
    ids = prompt(chat, QUESTIONS[2])
    name = uuid.uuid4().hex
    asked = GenerationRequest(name, name, ids, SamplingParams(max_new_tokens=900, seed=1), time_limit_s=0.3)
    result = await engine.generate(asked)
    assert result.finish is FinishReason.ABORT
    assert 1 <= len(result.ids) == len(result.logprobs) < 900


async def test_waiting_too_long_or_in_vain_is_the_engines_failure(
    engine: TransformersEngine, chat: ChatTemplate
) -> None:
    ids = prompt(chat, QUESTIONS[2])
    running = [asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=600, seed=n))) for n in range(3)]
    while engine.statistics().running < 3:
        await asyncio.sleep(0.01)
    name = uuid.uuid4().hex
    late = GenerationRequest(name, name, ids, SamplingParams(), queue_timeout_s=0.2)
    with pytest.raises(EngineUnavailable, match=r"waited 0\.2 s in the engine's queue"):
        await engine.generate(late)
    waiting = [asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=1, seed=1))) for _ in range(16)]
    while engine.statistics().queued < 16:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineUnavailable, match="queue is full"):
        await engine.generate(request(ids, max_new_tokens=1))
    for task in [*running, *waiting]:
        task.cancel()
    await asyncio.gather(*running, *waiting, return_exceptions=True)
    while engine.statistics().running or engine.statistics().queued:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("ids", "params", "field"),
    [
        ((), {}, "input_ids"),
        ((1, 49152), {}, "input_ids[1]"),
        ((-1,), {}, "input_ids[0]"),
        ((1,), {"stop_token_ids": (2, 99999)}, "params.stop_token_ids[1]"),
        ((1,) * 1000, {"max_new_tokens": 25}, "input_ids"),
    ],
)
async def test_impossible_request_is_refused_by_field(
    engine: TransformersEngine, ids: tuple[int, ...], params: dict[str, Any], field: str
) -> None:
    before = engine.statistics()
    with pytest.raises(FieldErrors) as caught:
        await engine.generate(request(ids, **params))
    assert [error.field for error in caught.value.errors] == [field]
    assert engine.statistics() == before


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


async def test_closing_answers_everyone(model_dir: Path, chat: ChatTemplate) -> None:
    async with TransformersEngine(model_dir, max_batch=1, max_model_tokens=1024) as engine:
        ids = prompt(chat, QUESTIONS[0])
        tasks = [asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=900))) for _ in range(3)]
        while engine.statistics().running == 0:
            await asyncio.sleep(0.01)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [EngineUnavailable] * 3
    with pytest.raises(EngineUnavailable, match="closed"):
        await engine.generate(request(ids, max_new_tokens=1))
