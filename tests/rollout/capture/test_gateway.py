"""OpenAI's own client against the real gateway: what agents do, and what is recorded of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import APIError, APIStatusError, BadRequestError, NotFoundError

from rollout.capture import BranchReason, UnknownTrajectoryError
from rollout.engines import EngineUnavailable
from rollout.testing import LOGPROB
from rollout.tokens import ChatTemplate, HubTokenizer, SegmentKind
from tests.rollout.capture.gateways import CALL, QUESTION, TOOLS, client, scripted


def said(message: Any) -> dict[str, Any]:
    """A message as agents send it back."""
    kept: dict[str, Any] = message.model_dump(exclude_none=True)
    return kept


async def test_tool_loop_is_one_branch_of_exact_tokens(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    async with scripted(tokenizer, chat, [CALL, "It is 3."]) as (gateway, engine), client(gateway) as openai:
        first = await openai.chat.completions.create(model="scripted", messages=QUESTION, tools=TOOLS)
        choice = first.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        assert choice.message.tool_calls is not None
        call: Any = choice.message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("add", '{"a": 1, "b": 2}')
        messages = [
            *QUESTION,
            said(choice.message),
            {"role": "tool", "tool_call_id": call.id, "content": "3<|im_end|>"},
        ]
        second = await openai.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
        assert second.choices[0].message.content == "It is 3."
        assert second.choices[0].finish_reason == "stop"
        assert second.model_extra is not None
        assert second.model_extra["fairbox"]["new_branch"] is False

        found = gateway.trajectory("t")
        assert [branch.reason for branch in found.branches] == [BranchReason.FIRST]
        tokens = found.branch.trajectory
        prompt = chat.prompt_ids(QUESTION, TOOLS)
        turns = [(*tokenizer.encode(text), chat.end_of_turn) for text in (CALL, "It is 3.")]
        between = chat.between_turns(["3< |im_end|>"], ended=True)  # an answer can't end its own turn
        assert [engine_request.input_ids for engine_request in engine.requests] == [prompt, prompt + turns[0] + between]
        assert tokens.prompt_ids == prompt
        assert tokens.response_ids == turns[0] + between + turns[1]
        kinds = [segment.kind for segment in tokens.segments]
        assert kinds == [SegmentKind.PROMPT, SegmentKind.SAMPLED, SegmentKind.TOOL, SegmentKind.SAMPLED]
        assert tokens.response_mask == (1,) * len(turns[0]) + (0,) * len(between) + (1,) * len(turns[1])
        assert {p for p, m in zip(tokens.logprobs, tokens.response_mask, strict=True) if m} == {LOGPROB}
        assert gateway.statistics().turns == 2
        assert gateway.statistics().running == 0


async def test_streamed_turn_says_what_an_unstreamed_one_does(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    turns = [f"<think>\nHm.\n</think>\n\n{CALL}"]
    async with scripted(tokenizer, chat, turns * 2) as (gateway, _), client(gateway) as openai:
        whole = await openai.chat.completions.create(model="scripted", messages=QUESTION, tools=TOOLS, logprobs=True)
        stream = await openai.chat.completions.create(
            model="scripted",
            messages=QUESTION,
            tools=TOOLS,
            stream=True,
            logprobs=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        deltas: list[Any] = [choice.delta for chunk in chunks for choice in chunk.choices]
        message: Any = whole.choices[0].message
        assert "".join(delta.content or "" for delta in deltas) == message.content == "Let me see."
        reasoning = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
        assert reasoning == [message.reasoning_content] == ["Hm."]
        calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
        assert [(c.name, c.arguments) for c in calls] == [
            (c.function.name, c.function.arguments) for c in message.tool_calls
        ]
        assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["tool_calls"]
        assert chunks[-1].usage == whole.usage
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert whole.usage is not None
        assert len(logprobs.content) == whole.usage.completion_tokens
        assert "".join(each.token for each in logprobs.content) == turns[0] + "<|im_end|>"
        # The same messages again: another sample of the same turn.
        branches = gateway.trajectory("t").branches
        assert [branch.reason for branch in branches] == [BranchReason.FIRST, BranchReason.RESAMPLED]


async def test_trajectories_are_kept_apart(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    def say(request: Any, turn: int) -> str:
        return f"{request.trajectory_id} turn {turn}"

    async def play(gateway: Any, name: str) -> None:
        messages = list(QUESTION)
        async with client(gateway, name) as openai:
            for turn in range(3):
                reply = await openai.chat.completions.create(model="scripted", messages=messages)
                assert reply.choices[0].message.content == f"{name} turn {turn}"
                messages += [said(reply.choices[0].message), {"role": "user", "content": f"Go on, {turn}."}]

    async with scripted(tokenizer, chat, say, delay_s=0.01) as (gateway, _):
        names = [f"task-{n}" for n in range(8)]
        await asyncio.gather(*(play(gateway, name) for name in names))
        assert sorted(gateway.trajectory_ids()) == names
        for name in names:
            found = gateway.trajectory(name)
            assert len(found.branches) == 1
            assert len(found.branch.turns) == 3
            assert chat.decode(found.branch.trajectory.ids).count(name) == 3
            # What the model saw is what its template makes of the whole conversation.
            whole = tokenizer.render(found.branch.messages, (), generate=False)
            assert chat.decode(found.branch.trajectory.ids) + "\n" == whole


async def test_header_names_the_trajectory_where_the_path_does_not(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    async with scripted(tokenizer, chat, ["Hi."]) as (gateway, _), client(gateway) as openai:
        plain = openai.with_options(base_url=f"http://{gateway.address}/v1")
        with pytest.raises(BadRequestError) as caught:
            await plain.chat.completions.create(model="scripted", messages=QUESTION)
        assert caught.value.param == "x-fairbox-trajectory"
        named = plain.with_options(default_headers={"x-fairbox-trajectory": "by-header"})
        await named.chat.completions.create(model="scripted", messages=QUESTION)
        assert gateway.trajectory_ids() == ("by-header",)
        assert [model.id async for model in openai.models.list()] == ["scripted"]
        assert (await openai.models.retrieve("scripted")).id == "scripted"


async def test_edited_history_starts_a_branch_that_says_where(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    async with scripted(tokenizer, chat, ["One.", "Two.", "Three.", "Four."]) as (gateway, engine):
        async with client(gateway) as openai:
            messages = list(QUESTION)
            for _ in range(2):
                reply = await openai.chat.completions.create(model="scripted", messages=messages)
                messages += [said(reply.choices[0].message), {"role": "user", "content": "Go on."}]
            messages[2] = {"role": "user", "content": "Go back."}
            raw = await openai.chat.completions.with_raw_response.create(model="scripted", messages=messages[:3])
            assert raw.headers["x-fairbox-branch"] == "1"
            assert raw.headers["x-fairbox-branch-reason"] == "diverged"
            messages[0] = {"role": "user", "content": "What is 2 + 2?"}
            other = await openai.chat.completions.create(model="scripted", messages=messages)
        assert other.model_extra is not None
        said_of = other.model_extra["fairbox"]
        assert (said_of["branch"], said_of["reason"]) == (2, "diverged")
        assert said_of["where"].startswith("messages[0].content differs at character 8")
        branches = gateway.trajectory("t").branches
        assert [(branch.parent, branch.inherited > 0) for branch in branches] == [
            (None, False),
            (0, True),
            (None, False),
        ]
        assert branches[1].where.startswith("messages[2].content differs at character 3")
        shared = branches[1].inherited
        assert branches[0].trajectory.response_ids[:shared] == branches[1].trajectory.response_ids[:shared]
        assert branches[0].trajectory.response_ids[:shared] == (*tokenizer.encode("One."), chat.end_of_turn)
        assert [r.input_ids for r in engine.requests][2] == branches[1].trajectory.ids[
            : -len(branches[1].turns[-1].sampled[0].ids)
        ]


async def test_bad_requests_name_the_parameter_and_change_nothing(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    bad: list[tuple[dict[str, Any], str, int]] = [
        ({"model": "gpt-4o"}, "model", 404),
        ({"messages": []}, "messages", 400),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "It"}]}, "messages[1].role", 400),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", 400),
        ({"temperature": 11}, "temperature", 400),
        ({"temperature": "hot"}, "temperature", 400),
        ({"max_tokens": 0}, "max_tokens", 400),
        ({"n": 2}, "n", 400),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", 400),
        ({"stop": ["a", ""]}, "stop", 400),
        ({"tool_choice": "required"}, "tool_choice", 400),
        ({"tools": [{"type": "function"}]}, "tools[0].function", 400),
        ({"response_format": {"type": "json_object"}}, "response_format", 400),
        ({"top_logprobs": 5, "logprobs": True}, "top_logprobs", 400),
        ({"extra_body": {"best_of": 3}}, "best_of", 400),
        ({"stream_options": {"include_usage": True}}, "stream_options", 400),
    ]
    async with scripted(tokenizer, chat, ["Hi."]) as (gateway, engine), client(gateway) as openai:
        for change, param, status in bad:
            arguments = {"model": "scripted", "messages": QUESTION} | change
            with pytest.raises(APIStatusError) as caught:
                await openai.chat.completions.create(**arguments)
            assert (caught.value.status_code, caught.value.param) == (status, param), change
        assert engine.requests == []
        assert gateway.trajectory_ids() == ()
        harmless = {"user": "u", "store": False, "metadata": {"a": "b"}, "frequency_penalty": 0}
        await openai.chat.completions.create(model="scripted", messages=QUESTION, **harmless)  # type: ignore[call-overload]
        assert gateway.statistics().turns == 1


async def test_sampling_of_a_request_reaches_the_engine(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    wish: dict[str, Any] = {
        "temperature": 0.3,
        "top_p": 0.9,
        "seed": 5,
        "max_completion_tokens": 7,
        "extra_body": {"top_k": 4},
        "stop": "<|im_start|>",
    }
    async with scripted(tokenizer, chat, ["Hi."]) as (gateway, engine), client(gateway) as openai:
        await openai.chat.completions.create(model="scripted", messages=QUESTION, **wish)
        params = engine.requests[0].params
        assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.3, 0.9, 4, 5)
        assert params.max_new_tokens == 7
        assert params.stop_token_ids == (chat.end_of_turn, tokenizer.special_tokens["<|im_start|>"])
    async with scripted(tokenizer, chat, ["Hi."], ignore_parameters="temperature", models="*") as (gateway, engine):
        async with client(gateway) as openai:
            await openai.chat.completions.create(model="gpt-4o", messages=QUESTION, temperature=0)
        assert engine.requests[0].params.temperature == 1.0


async def test_prompt_that_fills_the_model_says_so_as_openai_does(
    chat: ChatTemplate, tokenizer: HubTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 300}]
    async with scripted(tokenizer, chat, ["Hi."], max_model_tokens=128) as (gateway, _), client(gateway) as openai:
        with pytest.raises(BadRequestError) as caught:
            await openai.chat.completions.create(model="scripted", messages=long)
        assert caught.value.code == "context_length_exceeded"
        reply = await openai.chat.completions.create(model="scripted", messages=QUESTION, max_tokens=5000)
        assert reply.choices[0].finish_reason == "stop"  # what was asked for is a bound, and clamped
    monkeypatch.setattr("rollout.capture.gateway._MAX_TOKENS", 64)
    async with scripted(tokenizer, chat, ["Hi."] * 9) as (gateway, _):
        async with client(gateway) as openai:
            answers = [
                await asyncio.gather(
                    openai.chat.completions.create(model="scripted", messages=QUESTION), return_exceptions=True
                )
                for _ in range(9)
            ]
        errors = [answer for (answer,) in answers if isinstance(answer, BadRequestError)]
        assert {error.code for error in errors} == {"context_length_exceeded"}
        assert gateway.trajectory("t").tokens <= 64


async def test_client_that_goes_away_takes_its_generation_with_it(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    async with scripted(tokenizer, chat, ["Hi."], delay_s=60) as (gateway, engine), client(gateway) as openai:
        for stream in (False, True):
            asking = asyncio.ensure_future(
                openai.chat.completions.create(model="scripted", messages=QUESTION, stream=stream)
            )
            async with asyncio.timeout(30):
                while not engine.statistics().running:
                    await asyncio.sleep(0.01)
                asking.cancel()
                await asyncio.wait({asking})
                while engine.statistics().running or gateway.statistics().running:
                    await asyncio.sleep(0.01)
        assert engine.statistics().aborted == 2
        assert gateway.trajectory_ids() == ()  # it held nothing


async def test_deleting_a_trajectory_ends_its_requests(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    async with scripted(tokenizer, chat, ["Hi."], delay_s=60) as (gateway, engine), client(gateway) as openai:
        asking = asyncio.ensure_future(openai.chat.completions.create(model="scripted", messages=QUESTION))
        async with asyncio.timeout(30):
            while not engine.statistics().running:
                await asyncio.sleep(0.01)
        gateway.delete("t")
        with pytest.raises(NotFoundError):
            await asking
        assert engine.statistics().running == 0
        with pytest.raises(UnknownTrajectoryError):
            gateway.trajectory("t")


async def test_bounds_answer_429_with_retry_after(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    one = scripted(tokenizer, chat, ["Hi."], max_concurrent=1)
    async with one as (gateway, engine), client(gateway, "a") as first, client(gateway, "b") as second:
        await second.chat.completions.create(model="scripted", messages=QUESTION)
        engine._delay_s = 60
        asking = asyncio.ensure_future(first.chat.completions.create(model="scripted", messages=QUESTION))
        async with asyncio.timeout(30):
            while not engine.statistics().running:
                await asyncio.sleep(0.01)
        with pytest.raises(APIStatusError) as caught:
            await second.chat.completions.create(model="scripted", messages=QUESTION)
        assert caught.value.status_code == 429
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert gateway.trajectory("b").masked  # until it gets a turn
        asking.cancel()
    async with scripted(tokenizer, chat, ["Hi."], max_trajectories=1) as (gateway, _):
        async with client(gateway, "a") as first, client(gateway, "b") as second:
            await first.chat.completions.create(model="scripted", messages=QUESTION)
            with pytest.raises(APIStatusError) as caught:
                await second.chat.completions.create(model="scripted", messages=QUESTION)
            assert caught.value.status_code == 429
            gateway.delete("a")
            await second.chat.completions.create(model="scripted", messages=QUESTION)
        assert gateway.statistics().refused == 1


async def test_failure_of_the_engine_is_infra_until_a_turn_follows(chat: ChatTemplate, tokenizer: HubTokenizer) -> None:
    turns: list[str | Exception] = ["One.", EngineUnavailable("the engine is closed"), "Two."]
    async with scripted(tokenizer, chat, turns) as (gateway, _), client(gateway) as openai:
        reply = await openai.chat.completions.create(model="scripted", messages=QUESTION)
        gateway.set_reward("t", 1.0)
        messages = [*QUESTION, said(reply.choices[0].message), {"role": "user", "content": "Go on."}]
        with pytest.raises(APIStatusError) as caught:
            await openai.chat.completions.create(model="scripted", messages=messages, stream=True)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"] == "1"
        found = gateway.trajectory("t")
        assert (found.masked, found.reward, found.cause, found.failures) == (True, None, "INFRA", 1)
        await openai.chat.completions.create(model="scripted", messages=messages)
        found = gateway.trajectory("t")
        assert (found.masked, found.reward, len(found.branches)) == (False, 1.0, 1)


async def test_slow_engine_is_a_504_and_a_waiting_stream_says_that_it_waits(
    chat: ChatTemplate, tokenizer: HubTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(tokenizer, chat, ["Hi."], delay_s=60, request_timeout_s=0.2) as (gateway, engine):
        async with client(gateway) as openai:
            with pytest.raises(APIStatusError) as caught:
                await openai.chat.completions.create(model="scripted", messages=QUESTION)
        assert caught.value.status_code == 504
        assert engine.statistics().running == 0
        assert gateway.trajectory("t").masked
    turns: list[str | Exception] = ["Hi.", EngineUnavailable("gone")]
    monkeypatch.setattr("rollout.capture.server._KEEP_ALIVE_S", 0.05)
    async with scripted(tokenizer, chat, turns) as (gateway, engine), client(gateway) as openai:
        await engine.pause()  # until the stream is there
        stream = await openai.chat.completions.create(model="scripted", messages=QUESTION, stream=True)
        await engine.resume()
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "Hi."
        await engine.pause()
        stream = await openai.chat.completions.create(model="scripted", messages=QUESTION, stream=True)
        await engine.resume()
        with pytest.raises(APIError, match="the engine is unavailable: gone"):
            _ = [chunk async for chunk in stream]
