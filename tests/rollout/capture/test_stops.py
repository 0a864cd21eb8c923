"""Texts that end a turn: what the client reads ends before the text, what is recorded is what was sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout.capture import CaptureGateway, CaptureSettings
from rollout.capture.stops import PIECE, find_stop
from rollout.engines import FinishReason
from rollout.tokens import ChatTemplate, HubTokenizer
from tests.rollout.capture.gateways import CALL, QUESTION, TOOLS, client, scripted
from tests.rollout.capture.test_exactness import Witness

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 2 * PIECE}


def test_the_text_that_is_complete_first_ends_a_turn() -> None:
    assert find_stop("abcd", []) is None
    assert find_stop("abcd", ["x", "cd"]) == 2
    assert find_stop("abcd", ["abcd", "b"]) == 1  # complete before the other one is
    assert find_stop("abcd", ["c", "bc"]) == 1


async def test_a_turn_of_a_real_model_is_cut_at_the_token_that_completes_the_text(
    tiny_dir: Path, chat: ChatTemplate
) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me a long story about a small house by the sea."}]
    engine = Witness(tiny_dir, max_batch=2, max_model_tokens=1024)
    async with engine, CaptureGateway(engine, chat, CaptureSettings(listen="127.0.0.1:0")) as gateway:
        async with client(gateway, "whole", timeout=90.0) as openai:
            await openai.chat.completions.create(model=engine.model_name, messages=messages, **GREEDY)
        _, whole = engine.seen.pop()
        said = chat.turn_text(whole.ids)
        borders = [len(chat.turn_text(whole.ids[:end])) for end in range(PIECE + 5, len(whole.ids))]
        around = [(border - 2, said[border - 2 : border + 2]) for border in borders]  # over two tokens
        text = next(text for at, text in around if said.find(text) == at)
        end = next(end for end in range(len(whole.ids)) if text in chat.turn_text(whole.ids[:end]))
        assert end > PIECE
        async with client(gateway, "cut", timeout=90.0) as openai:
            reply = await openai.chat.completions.create(
                model=engine.model_name, messages=messages, stop=["nowhere in it", text], **GREEDY
            )
            (first, one), (second, two) = engine.seen
            assert (len(one.ids), second.input_ids) == (PIECE, first.input_ids + one.ids)
            assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == (
                "stop",
                said[: said.find(text)].strip(),
            )
            (turn,) = gateway.trajectory("cut").branch.turns
            assert turn.finish is FinishReason.STOP
            (segment,) = turn.sampled
            assert segment.ids == whole.ids[:end] == (one.ids + two.ids)[:end]
            assert segment.logprobs == pytest.approx(whole.logprobs[:end], abs=1e-4)
            assert reply.usage is not None
            assert reply.usage.completion_tokens == end
            messages += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]
            await openai.chat.completions.create(
                model=engine.model_name, messages=messages, temperature=0, max_tokens=2
            )
        found = gateway.trajectory("cut")
        assert [branch.reason for branch in found.branches] == ["first"]  # the cut answer is known again
        assert engine.seen[-1][0].input_ids[: len(first.input_ids) + end] == first.input_ids + segment.ids


async def test_a_call_before_the_text_is_a_call(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    turn = f"{CALL}\nObservation: 3"
    async with scripted(tokenizer, chat, [turn]) as (gateway, engine), client(gateway) as openai:
        reply = await openai.chat.completions.create(
            model="scripted", messages=QUESTION, tools=TOOLS, stop="Observation:", max_tokens=PIECE
        )
        assert reply.choices[0].finish_reason == "tool_calls"
        assert reply.choices[0].message.content == "Let me see."
        (recorded,) = gateway.trajectory("t").branch.turns
        assert recorded.text.endswith("Observation:")
        assert not recorded.ended
        assert len(engine.requests) == 1
