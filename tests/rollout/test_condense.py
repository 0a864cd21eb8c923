"""Conversations that fill their context: what is left out, and that every part stays exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbox.errors import ConfigError, FieldErrors
from rollout.batch import RolloutBatch
from rollout.dump import DumpError, DumpWriter, parts_of, read_dump, record_of
from rollout.dump_check import check_dump
from rollout.engines import FinishReason, SamplingParams
from rollout.engines.local.engine import TransformersEngine
from rollout.interop.skyrl.convert import generator_output
from rollout.loop import AgentLoop, Finish, Generate, Limits, StopReason, Task, TrajectoryMachine, TrajectoryResult
from rollout.loop.condense import Condensation, condensed
from rollout.loop.rows import rows_of
from rollout.rewards import Reward
from rollout.testing import LOGPROB, ScriptedEngine, ScriptedTool
from rollout.tokens import ChatTemplate, HubTokenizer, SegmentKind
from rollout.tokens.conversation import MessageTurn
from rollout.tools import Toolbox, ToolCall
from tests.rollout.scripted import NO_LIMITS, tool_call

TASK = Task("u", ({"role": "user", "content": "Where?"},), "6", "test", "here:1")
LONG = "word " * 300


class Forkable(ScriptedTool):
    """Has no state to fork."""

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Nothing to do."""


class Played:
    """Trajectories whose tool answers at length, with the engine's requests kept."""

    def __init__(self, tokenizer: HubTokenizer, chat: ChatTemplate) -> None:
        self._tokenizer, self._chat = tokenizer, chat
        self.engine = ScriptedEngine(tokenizer, [], vocab_size=49152)

    def loop(self, turns: list[str], condense: Condensation, limits: Limits = NO_LIMITS) -> AgentLoop:
        self.engine = ScriptedEngine(self._tokenizer, turns, vocab_size=49152)
        tools = Toolbox([Forkable(lambda arguments: f"{arguments['text']} {LONG}")])
        return AgentLoop(self.engine, self._chat, tools, limits, SamplingParams(), condense=condense)

    async def play(self, turns: list[str], condense: Condensation, limits: Limits = NO_LIMITS) -> TrajectoryResult:
        return await self.loop(turns, condense, limits).run(TASK, index=0, seed=1)


@pytest.fixture
def played(tokenizer: HubTokenizer, chat: ChatTemplate) -> Played:
    return Played(tokenizer, chat)


FOUR = [*(tool_call("echo", text=text) for text in ("one", "two", "three")), "There."]


async def test_it_is_off_unless_asked_for(played: Played) -> None:
    result = await played.play(FOUR, Condensation())
    assert (result.earlier, result.parts) == ((), (result.trajectory,))


async def test_each_part_is_what_the_engine_was_given_and_gave(
    played: Played, tokenizer: HubTokenizer, chat: ChatTemplate
) -> None:
    result = await played.play(FOUR, Condensation(at_tokens=1000, keep_last=1))
    assert result.stop_reason is StopReason.ANSWERED
    assert len(result.earlier) >= 1
    given = iter(played.engine.requests)
    for part in result.parts:
        assert [segment.kind for segment in part.segments[:2]] == [SegmentKind.PROMPT, SegmentKind.SAMPLED]
        ids = part.prompt_ids
        for segment in part.segments[1:]:
            if segment.kind is SegmentKind.SAMPLED:
                assert next(given).input_ids == ids
            ids += segment.ids
        marked = [p for p, m in zip(part.logprobs, part.response_mask, strict=True) if m]
        assert marked == [LOGPROB] * sum(part.response_mask)
        assert part.segments[-1].kind is SegmentKind.SAMPLED
    assert next(given, None) is None
    # A part begins with the whole of the conversation that is left, up to where the model goes on.
    assert all(tokenizer.decode(p.prompt_ids).endswith("<|im_end|>\n<|im_start|>assistant\n") for p in result.parts)
    # What the model said is in every later prompt as it was; of the answers the newest one is.
    last = tokenizer.decode(result.parts[-1].prompt_ids)
    for text in FOUR[:3]:
        assert text in last
    assert "characters of output are no longer shown" in last
    assert last.count(LONG.strip()) == 1
    # The conversation that is kept for rewards and people lacks nothing.
    assert [m["content"] for m in result.messages if m["role"] == "tool"] == [
        f"{name} {LONG}" for name in ("one", "two", "three")
    ]


async def test_turns_are_sampled_once_and_counted_over_all_parts(played: Played) -> None:
    result = await played.play(FOUR, Condensation(at_tokens=1000, keep_last=1))
    plain = await played.play(FOUR, Condensation())
    sampled = sum(sum(part.response_mask) for part in result.parts)
    assert (result.turns, sampled) == (plain.turns, sum(plain.trajectory.response_mask))


async def test_context_is_bounded_where_it_would_have_ended_the_trajectory(played: Played) -> None:
    limits = Limits(None, 1200, None, None, None, None)
    assert (await played.play(FOUR, Condensation(), limits)).stop_reason is StopReason.MODEL_LENGTH
    result = await played.play(FOUR, Condensation(at_tokens=800, keep_last=1), limits)
    assert result.stop_reason is StopReason.ANSWERED
    assert all(len(part.ids) <= 1200 for part in result.parts)


async def test_nothing_is_closed_for_a_part_that_would_be_too_long_itself(played: Played) -> None:
    result = await played.play(FOUR, Condensation(at_tokens=300, keep_last=1))
    assert result.earlier == ()


async def test_part_without_a_turn_is_none(played: Played) -> None:
    limits = Limits(None, None, 2, None, None, None)
    result = await played.play(FOUR, Condensation(at_tokens=800, keep_last=1), limits)
    assert (result.stop_reason, result.earlier) == (StopReason.TURNS, ())
    assert result.trajectory.segments[-1].kind is SegmentKind.SAMPLED


async def test_branches_go_on_with_their_own_parts(played: Played) -> None:
    settings = Condensation(at_tokens=800, keep_last=1)
    alone = await played.play(FOUR, settings)
    loop = played.loop(FOUR, settings)
    async with loop.open(TASK, index=0, seed=1) as run:
        await run.turn()
        await run.turn()
        (fork,) = await loop.branch(run, 1)
        async with fork:
            await fork.play()
        await run.play()
    assert [len(part.ids) for part in run.result().parts] == [len(part.ids) for part in alone.parts]
    assert fork.result().earlier[0] == run.result().earlier[0]
    assert len(fork.result().earlier) > len(run.result().earlier)  # its script begins anew


def machine(**limits: Any) -> TrajectoryMachine:
    return TrajectoryMachine(Limits(**{**NO_LIMITS.__dict__, **limits}), prompt_tokens=100, max_model_tokens=1000)


def test_budget_of_a_new_part_counts_its_own_prompt_and_the_response_of_all() -> None:
    life = machine(max_response_tokens=500)
    life.start()
    life.generated(tokens=300, finish=FinishReason.STOP, calls=1)
    assert life.answered(tokens=400, charged_s=0, new_prompt_tokens=250) == Generate(200)
    assert life.usage.context_tokens == 250
    life.generated(tokens=100, finish=FinishReason.STOP, calls=1)
    assert life.usage.context_tokens == 350
    assert life.answered(tokens=700, charged_s=0) == Finish(StopReason.RESPONSE_LENGTH)


def test_part_whose_prompt_fills_the_model_is_not_begun() -> None:
    life = machine()
    life.start()
    life.generated(tokens=300, finish=FinishReason.STOP, calls=1)
    assert life.answered(tokens=900, charged_s=0, new_prompt_tokens=1000) == Finish(StopReason.MODEL_LENGTH)
    assert (life.usage.context_tokens, life.usage.response_tokens) == (400, 300)


@pytest.mark.parametrize(("name", "value"), [("at_tokens", 0), ("keep_last", -1)])
def test_bad_settings_are_named(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"condense\.{name}.* is {value}"):
        Condensation(**{name: value})


@given(st.lists(st.lists(st.text(max_size=120), max_size=3), max_size=5), st.integers(0, 6))
def test_newest_answers_and_everything_said_stay_and_nothing_grows(answers: list[list[str]], keep: int) -> None:
    turns = [MessageTurn(f"said {n}", tuple(texts)) for n, texts in enumerate(answers)]
    made = condensed(turns, keep)
    if made is None:
        return
    before, after = ([text for turn in each for text in turn.answers] for each in (turns, made))
    assert [turn.text for turn in made] == [turn.text for turn in turns]
    assert [len(turn.answers) for turn in made] == [len(turn.answers) for turn in turns]
    assert all(len(new) <= len(old) for new, old in zip(after, before, strict=True))
    assert before != after
    assert keep == 0 or before[-keep:] == after[-keep:]
    again = condensed(made, keep)
    assert again is None


async def test_dump_has_every_part_and_a_broken_one_is_named(
    played: Played, chat: ChatTemplate, tmp_path: Path
) -> None:
    result = await played.play(FOUR, Condensation(at_tokens=1000, keep_last=1))
    record = record_of(result, TASK, step=1, model="scripted", decode=chat.decode_plain)
    with DumpWriter(tmp_path, 1) as dump:
        dump.write(record)
    (read,) = read_dump(dump.path)
    assert [tuple(part["prompt_ids"]) for part in parts_of(read)] == [part.prompt_ids for part in result.parts]
    record["earlier"][0]["logprobs"].pop()
    with DumpWriter(tmp_path, 2) as dump:
        dump.write(record)
    with pytest.raises(DumpError, match=r"2\.jsonl:1: earlier\[0\]: response_ids, response_mask and logprobs differ"):
        list(read_dump(dump.path))


async def test_logprobs_of_every_part_are_those_of_a_forward_pass(
    tiny_dir: Path, chat: ChatTemplate, tmp_path: Path
) -> None:
    """A model that makes no sense asks for nothing, so a tool is called by hand: each turn is taken for a call."""

    class EveryTurn:
        """Takes any turn for a call."""

        name = "every"

        def parse(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall, ...]:
            return (ToolCall("echo", {"text": "x"}, text),)

    limits = Limits(None, None, 4, None, None, 6)
    async with TransformersEngine(tiny_dir, max_batch=1) as engine:
        loop = AgentLoop(
            engine,
            chat,
            Toolbox([ScriptedTool(lambda _: LONG)]),
            limits,
            SamplingParams(temperature=0.7),
            tool_format=EveryTurn(),
            condense=Condensation(at_tokens=800, keep_last=1),
        )
        result = await loop.run(TASK, index=0, seed=1)
        record = record_of(result, TASK, step=1, model=engine.model_name, decode=chat.decode_plain)
    assert len(result.parts) > 1
    with DumpWriter(tmp_path, 1) as dump:
        dump.write(record)
    found = check_dump(dump.path, tiny_dir)
    assert found.problems == ()
    assert found.sampled_tokens == sum(sum(part.response_mask) for part in result.parts) > 0
    assert found.max_logprob_difference < 1e-4, found.worst
    record["earlier"][0]["response_ids"][0] += 1  # the check can fail, also for a part that is closed
    with DumpWriter(tmp_path, 2) as dump:
        dump.write(record)
    assert check_dump(dump.path, tiny_dir).max_logprob_difference > 1e-4


async def test_trainers_get_a_row_for_each_part_with_one_reward(played: Played) -> None:
    result = await played.play(FOUR, Condensation(at_tokens=1000, keep_last=1))
    plain = await played.play(FOUR, Condensation())
    count = len(result.parts)
    assert count == 2
    turns = [sum(s.kind is SegmentKind.SAMPLED for s in part.segments) for part in result.parts]
    scored = replace(result, reward=Reward(2.0, turns={1: 0.5, turns[0] + 1: 0.25}))
    rows, last = rows_of([scored, replace(plain, reward=Reward(1.0))])
    assert last == [False, True, True]
    assert [row.trajectory for row in rows] == [*result.parts, plain.trajectory]
    assert [row.reward.turns for row in rows if row.reward] == [{1: 0.5}, {1: 0.25}, {}]
    batch = RolloutBatch.from_results([scored, replace(plain, reward=Reward(1.0))], pad_token_id=0)
    assert batch.is_last_step.tolist() == [False, True, True]
    assert batch.rewards.tolist() == batch.token_rewards.sum(dim=1).tolist() == [2.0, 2.0, 1.0]
    assert batch.trajectory_ids == (result.trajectory_id, result.trajectory_id, plain.trajectory_id)
    for row, part in zip(batch.responses, result.parts, strict=False):
        assert row[: len(part.response_ids)].tolist() == list(part.response_ids)
    output = generator_output([scored, plain], pad_token_id=0, trajectory_ids=["a", "b"])
    assert (output["is_last_step"], output["trajectory_ids"]) == ([False, True, True], ["a", "a", "b"])
    assert output["rewards"] == [2.0, 2.0, 0.0]
    assert [tuple(ids) for ids in output["response_ids"][:2]] == [part.response_ids for part in result.parts]
    with pytest.raises(FieldErrors, match="trajectory_ids"):
        generator_output([scored], pad_token_id=0)
    assert generator_output([plain], pad_token_id=0)["is_last_step"] is None
