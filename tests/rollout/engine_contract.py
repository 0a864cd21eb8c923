"""Contract of every engine, whatever it runs on: one suite, which the tests of each engine inherit.

A module that inherits it provides the fixtures `engine` (entered, SmolLM2-135M-Instruct, version `initial_version`),
`open_engine` (makes another one, not entered) and `reference` (transformers' own model), and for the weights `weighted`
(entered, the model of `tiny_dir`).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fairbox.errors import FieldErrors
from rollout.engines import (
    DiskWeights,
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Interrupt,
    SamplingParams,
    VersionSpan,
    WeightedEngine,
)
from rollout.tokens import ChatTemplate

QUESTIONS = (
    "Hi.",
    "What is the capital of France? Answer in one sentence.",
    "Count from one to ten, then name three colours and say which of them you like best.",
    "Why?",
    "Write a Python function that adds two numbers.",
    "A train travels 180 kilometres in 3 hours. How far does it travel in 7 hours? " * 4,
)
CLOSE = 1e-4
"""Largest difference between an engine's logprob and that of a plain forward pass, both in float32."""

WITHIN_S = 100.0
"""For a turn to begin, on a loaded machine."""
LONG = 300
"""Ids of a turn of the tiny model that still runs when something is done about it."""


def prompt(chat: ChatTemplate, question: str) -> tuple[int, ...]:
    return chat.prompt_ids([{"role": "user", "content": question}])


def request(ids: Sequence[int], *, time_limit_s: float | None = None, **params: Any) -> GenerationRequest:
    name = uuid.uuid4().hex
    chosen = SamplingParams(**params)
    return GenerationRequest(name, name, tuple(ids), chosen, queue_timeout_s=100, time_limit_s=time_limit_s)


@torch.inference_mode()
def teacher_forced(model: Any, ids: Sequence[int], result: GenerationResult, temperature: float) -> torch.Tensor:
    """The logprob of each sampled id by one forward pass over the whole: (sampled,)."""
    whole = torch.tensor([[*ids, *result.ids]])
    logits = model(whole, use_cache=False).logits[0, len(ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(result.ids)[:, None])[:, 0]


def difference(model: Any, ids: Sequence[int], result: GenerationResult, temperature: float = 1.0) -> float:
    """Between the engine's logprobs and those of a plain forward pass."""
    expected = teacher_forced(model, ids, result, temperature)
    return float((expected - torch.tensor(result.logprobs)).abs().max())


def plain_model(model_dir: Path) -> Any:
    """transformers' own model, in float32."""
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


async def running(engine: WeightedEngine, turns: int) -> None:
    """Returns when `turns` run."""
    async with asyncio.timeout(WITHIN_S):
        while engine.statistics().running < turns:
            await asyncio.sleep(0.01)


async def idle(engine: WeightedEngine) -> None:
    """Returns when nothing runs or waits."""
    async with asyncio.timeout(WITHIN_S):
        while engine.statistics().running or engine.statistics().queued:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def sampling(engine: WeightedEngine, *requests: GenerationRequest) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks that sample `requests`, once all of them run. Those that still run at the end are cancelled."""
    tasks = [asyncio.ensure_future(engine.generate(each)) for each in requests]
    try:
        await running(engine, len(tasks))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await idle(engine)


def cover(result: GenerationResult) -> list[int]:
    """The ids' indices, as the version spans name them in order."""
    return [index for span in result.versions for index in range(span.start, span.end)]


class EngineContract:
    """Turns."""

    @pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.9, 20)])
    async def test_logprobs_are_those_of_a_teacher_forced_pass_through_joins_and_leaves(
        self, engine: Any, chat: ChatTemplate, reference: Any, temperature: float, top_p: float, top_k: int
    ) -> None:
        # Uneven prompts and lengths: turns join and leave while others run.
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
            assert difference(reference, asked.input_ids, result, temperature) < CLOSE
        assert engine.statistics().running == engine.statistics().queued == 0

    async def test_greedy_turn_stops_at_the_stop_token_which_is_returned(
        self, engine: Any, chat: ChatTemplate, reference: Any
    ) -> None:
        ids = prompt(chat, QUESTIONS[1])
        result = await engine.generate(
            request(ids, temperature=0, max_new_tokens=30, stop_token_ids=chat.stop_token_ids, seed=0)
        )
        assert chat.turn_text(result.ids) == "The capital of France is Paris."
        assert result.ids[-1] == chat.end_of_turn
        assert result.finish is FinishReason.STOP
        assert difference(reference, ids, result) < CLOSE

    async def test_turn_without_stop_token_ends_at_its_length(
        self, engine: Any, chat: ChatTemplate, initial_version: str
    ) -> None:
        ids = prompt(chat, QUESTIONS[1])
        short = await engine.generate(request(ids, temperature=0, max_new_tokens=4))
        assert len(short.ids) == 4
        assert short.finish is FinishReason.LENGTH
        assert short.versions == (VersionSpan(initial_version, 0, 4),)
        # The end of the turn is no stop token here, so it is an id like others.
        past = await engine.generate(request(ids, temperature=0, max_new_tokens=14))
        assert past.finish is FinishReason.LENGTH
        assert chat.end_of_turn in past.ids[:-1]

    async def test_only_the_stop_tokens_of_the_request_stop_it(
        self, engine: Any, chat: ChatTemplate, reference: Any
    ) -> None:
        ids = prompt(chat, QUESTIONS[1])
        full_stop = (await engine.generate(request(ids, temperature=0, max_new_tokens=12))).ids
        after = next(token for token in full_stop if full_stop.index(token) > full_stop.index(chat.end_of_turn))
        result = await engine.generate(request(ids, temperature=0, max_new_tokens=12, stop_token_ids=(after,)))
        assert result.ids == full_stop[: full_stop.index(after) + 1]
        assert result.finish is FinishReason.STOP
        assert difference(reference, ids, result) < CLOSE
        assert cover(result) == list(range(len(result.ids)))

    async def test_context_that_extends_an_earlier_one_is_not_computed_again(
        self, engine: Any, chat: ChatTemplate, reference: Any
    ) -> None:
        ids = prompt(chat, "Name a fruit, please, and say nothing else than its name.")
        first = await engine.generate(request(ids, max_new_tokens=6, seed=1))
        longer = (*ids, *first.ids, *chat.between_turns(["42"], ended=False))
        second = await engine.generate(request(longer, max_new_tokens=12, seed=2))
        assert second.cached_tokens == len(ids) + len(first.ids) - 1  # the last id's own keys were never needed
        assert difference(reference, longer, second) < CLOSE

    async def test_cancelled_request_leaves_its_row(self, engine: Any, chat: ChatTemplate) -> None:
        before = engine.statistics()
        task = asyncio.ensure_future(engine.generate(request(prompt(chat, QUESTIONS[2]), max_new_tokens=900)))
        await running(engine, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(engine)
        assert engine.statistics().aborted == before.aborted + 1
        assert engine.statistics().finished == before.finished

    async def test_time_limit_returns_what_there_is(self, engine: Any, chat: ChatTemplate, reference: Any) -> None:
        ids = prompt(chat, QUESTIONS[2])
        result = await engine.generate(request(ids, max_new_tokens=900, seed=1, time_limit_s=0.3))
        assert result.finish is FinishReason.ABORT
        assert 1 <= len(result.ids) == len(result.logprobs) < 900
        assert cover(result) == list(range(len(result.ids)))
        assert difference(reference, ids, result) < CLOSE

    @pytest.mark.parametrize(
        ("ids", "params", "field"),
        [
            ((), {}, "input_ids"),
            ((1, 49152), {}, "input_ids[1]"),
            ((-1,), {}, "input_ids[0]"),
            ((1,), {"stop_token_ids": (2, 99999)}, "params.stop_token_ids[1]"),
            ((1,) * 100_000, {"max_new_tokens": 25}, "input_ids"),
        ],
    )
    async def test_impossible_request_is_refused_by_field(
        self, engine: Any, ids: tuple[int, ...], params: dict[str, Any], field: str
    ) -> None:
        before = engine.statistics()
        with pytest.raises(FieldErrors) as caught:
            await engine.generate(request(ids, **params))
        assert [error.field for error in caught.value.errors] == [field]
        assert engine.statistics() == before

    async def test_longest_context_is_taken_to_its_last_id(self, engine: Any) -> None:
        room = engine.max_model_tokens
        result = await engine.generate(request((1,) * 40, max_new_tokens=1))
        assert result.finish is FinishReason.LENGTH
        with pytest.raises(FieldErrors, match=f"more than the model's {room}"):
            await engine.generate(request((1,) * (room - 1), max_new_tokens=2))

    async def test_closing_answers_everyone(self, open_engine: Callable[[], Any], chat: ChatTemplate) -> None:
        async with open_engine() as engine:
            ids = prompt(chat, QUESTIONS[0])
            tasks = [asyncio.ensure_future(engine.generate(request(ids, max_new_tokens=900))) for _ in range(3)]
            await running(engine, 1)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [EngineUnavailable] * 3
        with pytest.raises(EngineUnavailable, match="closed"):
            await engine.generate(request(ids, max_new_tokens=1))


class WeightsContract:
    """Weights that are replaced while turns run."""

    async def test_interrupted_turns_go_on_under_the_new_weights(
        self, weighted: Any, chat: ChatTemplate, tiny_dir: Path, other_tiny_dir: Path, fresh: None
    ) -> None:
        old = weighted.weight_version
        wanted = [
            request(prompt(chat, question), max_new_tokens=LONG, seed=n) for n, question in enumerate(QUESTIONS[:2])
        ]
        tasks = [asyncio.ensure_future(weighted.generate(each)) for each in wanted]
        await running(weighted, 2)
        await weighted.update_weights(DiskWeights(other_tiny_dir), version="second")
        for asked, result in zip(wanted, await asyncio.gather(*tasks), strict=True):
            assert [span.version for span in result.versions] == [old, "second"]
            assert cover(result) == list(range(LONG))
            assert len(result.ids) == len(result.logprobs) == LONG
            cut = result.versions[0].end
            before, after = (
                (teacher_forced(model, asked.input_ids, result, 1.0) - torch.tensor(result.logprobs)).abs()
                for model in (plain_model(tiny_dir), plain_model(other_tiny_dir))
            )
            # Each id was sampled by the weights that its span names, and by no others.
            assert before[:cut].max() < CLOSE < before[cut:].median()
            assert after[cut:].max() < CLOSE < after[:cut].median()
        assert weighted.weight_version == "second"

    async def test_finishing_turns_end_under_the_old_weights(
        self, weighted: Any, chat: ChatTemplate, other_tiny_dir: Path, fresh: None
    ) -> None:
        old = weighted.weight_version
        ids = prompt(chat, QUESTIONS[0])
        first = asyncio.ensure_future(weighted.generate(request(ids, max_new_tokens=LONG)))
        await running(weighted, 1)
        pausing = asyncio.ensure_future(weighted.pause(Interrupt.FINISH))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(weighted.generate(request(ids, max_new_tokens=4)))
        await pausing
        assert first.done()
        assert not second.done()
        await weighted.update_weights(DiskWeights(other_tiny_dir), version="second")
        assert not second.done()
        await weighted.resume()
        assert (await first).versions == (VersionSpan(old, 0, LONG),)
        assert (await second).versions == (VersionSpan("second", 0, 4),)

    async def test_weights_that_cannot_be_loaded_change_nothing(
        self, weighted: Any, chat: ChatTemplate, tmp_path: Path, fresh: None
    ) -> None:
        old = weighted.weight_version
        task = asyncio.ensure_future(weighted.generate(request(prompt(chat, QUESTIONS[0]), max_new_tokens=LONG)))
        await running(weighted, 1)
        with pytest.raises(EngineUnavailable):
            await weighted.update_weights(DiskWeights(tmp_path / "absent"), version="second")
        result = await task
        assert result.versions == (VersionSpan(old, 0, LONG),)
        assert weighted.weight_version == old
        with pytest.raises(FieldErrors, match="version"):
            await weighted.update_weights(DiskWeights(tmp_path), version="")

    async def test_nothing_waits_longer_than_it_may(self, weighted: Any, chat: ChatTemplate, fresh: None) -> None:
        ids = prompt(chat, QUESTIONS[0])
        await weighted.pause()
        try:
            asked = request(ids, max_new_tokens=4)
            hurried = GenerationRequest(asked.request_id, "t", asked.input_ids, asked.params, queue_timeout_s=0.1)
            with pytest.raises(EngineUnavailable, match="paused"):
                await weighted.generate(hurried)
            waiting = asyncio.ensure_future(weighted.generate(request(ids, max_new_tokens=4)))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        finally:
            await weighted.resume()
        task = asyncio.ensure_future(weighted.generate(request(ids, max_new_tokens=900)))
        await running(weighted, 1)
        with pytest.raises(EngineUnavailable, match="still ran"):
            await weighted.pause(Interrupt.FINISH, timeout_s=0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await idle(weighted)
        assert (await weighted.generate(request(ids, max_new_tokens=2))).finish is FinishReason.LENGTH


async def with_weights(engine: WeightedEngine, model_dir: Path, version: str) -> AsyncIterator[None]:
    """Body of the fixture `fresh`: the engine has the model's own weights before and after."""
    await engine.update_weights(DiskWeights(model_dir), version=version)
    yield
    await engine.update_weights(DiskWeights(model_dir), version=version)
