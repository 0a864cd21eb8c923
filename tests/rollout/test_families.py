"""Token exactness on the real chat templates of several families, whatever is said in a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.engines import FinishReason, GenerationResult, SamplingParams, VersionSpan
from rollout.loop import AgentLoop, Limits, Task
from rollout.testing import ScriptedEngine, ScriptedTool
from rollout.tokens import (
    CallRef,
    ChatTemplate,
    ChatTemplateError,
    DriftCounter,
    DriftKind,
    HubTokenizer,
    Message,
    Rewrites,
    SegmentKind,
    TokenBuilder,
)
from rollout.tokens.conversation import opened_thinking
from rollout.tokens.drift import drift_of
from rollout.tokens.probe import probe
from rollout.tools import ParameterSchema, Toolbox, ToolSchema, find_format
from tests.rollout.families import FAMILIES, Family, extended_tokenizer, family_tokenizer

SCHEMA = ToolSchema("run", "Runs code.", {"code": ParameterSchema("string", "Code.")}, required=("code",))
TOOLS = [SCHEMA.openai()]
START: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 * 7?"}]
# What each family writes for a call of `run` whose code is CODE; an id where the family's models write one.
CALLS = {
    "hermes": '<tool_call>\n{"name": "run", "arguments": {"code": "CODE"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=run>\n<parameter=code>\nCODE\n</parameter>\n</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "run", "arguments": {"code": "CODE"}, "id": "a1B2c3D4e"}]',
    "gpt_oss": "<|channel|>commentary to=functions.run <|constrain|>json<|message|>" + '{"code": "CODE"}',
    "llama3_json": '{"name": "run", "parameters": {"code": "CODE"}}',
    "glm45": "\n<think>Why?</think>\n<tool_call>run\n<arg_key>code</arg_key>\n<arg_value>CODE</arg_value>\n"
    "</tool_call>",
}


@pytest.fixture(scope="session")
def extended(model_dir: Path) -> HubTokenizer:
    return extended_tokenizer(model_dir)


def tokenizer_of(extended: HubTokenizer, family: Family) -> HubTokenizer:
    template = family.text()
    if template is None:
        pytest.skip(f"{family.file}: its licence keeps it out; FAIRBOX_TEMPLATES names no folder that has it")
    return family_tokenizer(extended, template, family)


def chat_of(extended: HubTokenizer, family: Family) -> ChatTemplate:
    stops = [extended.encode(text)[0] for text in ("<|return|>",) if family.calls]
    return ChatTemplate(tokenizer_of(extended, family), rewrites=Rewrites.KEEP, stop_token_ids=stops)


def sampled(ids: Sequence[int]) -> GenerationResult:
    spans = (VersionSpan("v", 0, len(ids)),)
    return GenerationResult(tuple(ids), tuple(-0.5 - i for i in range(len(ids))), FinishReason.STOP, spans)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_each_template_does_is_found_out(extended: HubTokenizer, name: str) -> None:
    family = FAMILIES[name]
    tokenizer = tokenizer_of(extended, family)
    found = probe(tokenizer)
    assert (found.severity.name, found.conversation.end) == (family.severity, family.end)
    assert found.conversation.style.calls is family.calls
    if family.severity == "NONE":
        chat = ChatTemplate(tokenizer)
    else:
        with pytest.raises(ChatTemplateError, match="rewrites=keep"):
            ChatTemplate(tokenizer)
        chat = ChatTemplate(tokenizer, rewrites=Rewrites.KEEP)
    assert find_format("auto", chat).name == family.tool_format


@pytest.mark.parametrize("name", FAMILIES)
async def test_engine_gets_what_the_template_renders(extended: HubTokenizer, name: str) -> None:
    family = FAMILIES[name]
    chat = chat_of(extended, family)
    said = [CALLS[family.tool_format].replace("CODE", code) for code in ("1", "2")]
    opened = opened_thinking(chat.prompt_text(START, TOOLS))
    said = [f"Why?\n</think>\n\n{text}" if opened and "</think>" not in opened else text for text in said]
    engine = ScriptedEngine(extended, [*said, "It is 42."], vocab_size=60_000)
    tool = ScriptedTool(lambda arguments: f"out {arguments['code']}", schema=SCHEMA)
    drift = DriftCounter(chat, 1.0)
    toolbox, limits = Toolbox([tool]), Limits(None, None, None, None, None, None)
    form = find_format("auto", chat)
    loop = AgentLoop(engine, chat, toolbox, limits, SamplingParams(), tool_format=form, drift=drift)
    result = await loop.run(Task("u", tuple(START), "42", "test", "here:1"), index=0, seed=1)
    assert [call.outcome.value for call in result.tool_calls] == ["ok", "ok"], result.error
    assert [call["code"] for call in tool.calls] == ["1", "2"]
    for request in engine.requests:
        assert result.trajectory.ids[: len(request.input_ids)] == request.input_ids
    counts = {kind: count for kind, count in drift.statistics().items() if count}
    exact = family.severity == "NONE" and not family.calls
    if exact:
        turns = chat.turns_of(result.messages[len(START) :])
        whole = chat.conversation.whole(START, TOOLS, turns)
        assert engine.requests[-1].input_ids == extended.encode(whole)
    known = {"NONE": DriftKind.TURN_REWRITTEN, "TURN": DriftKind.TURN_REWRITTEN, "PROMPT": DriftKind.PROMPT_REWRITTEN}
    assert counts == {DriftKind.EXACT if exact else known.get(family.severity, DriftKind.BOUNDARY): 1}


# What may be said: anything at all, with odd characters and the families' own marks more often than by chance.
MARKS = "<|im_end|> </s> <|eot_id|> [INST] <｜User｜> <|call|> <think> </think> <tool_call> </tool_response>"
ODD = st.sampled_from([*'é\u0301\u202e\x00\ufeff\n\\"𝔘㋿', "  ", "{{", "👩\u200d👩\u200d👧", *MARKS.split()])
ANYTHING = st.lists(ODD | st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=5).map("".join)
SURROGATES = st.lists(ODD | st.sampled_from(["\ud83d", "\udc69"]) | st.text(max_size=4), max_size=4).map("".join)
# What is said in a turn that a template is to write again as it was: it neither begins nor ends with white space, which
# templates trim and tokenizers join with line breaks, and holds no marks.
SPOKEN = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Mn", "Cf"]), min_size=1, max_size=20
)
SAID = SPOKEN.filter(lambda text: not set(text) & set("<>[]{}"))
THOUGHT = SAID.map(lambda text: f"<think>\n{text}\n</think>\n\n{text}")
TURN = st.tuples(SAID | THOUGHT, st.lists(SURROGATES, min_size=1, max_size=3), st.booleans())
EXACT = [name for name, family in FAMILIES.items() if family.severity == "NONE" and not family.calls]
FEW = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", [name for name in EXACT if name != "GLM-4.6"])
def test_pieces_are_the_rendering_of_the_whole(extended: HubTokenizer, name: str) -> None:
    chat = chat_of(extended, FAMILIES[name])
    refs = (CallRef("run"),) * 3

    @FEW
    @given(question=ANYTHING, turns=st.lists(TURN, min_size=1, max_size=3))
    def check(question: str, turns: list[tuple[str, list[str], bool]]) -> None:
        prompt: list[Message] = [{"role": "system", "content": "S"}, {"role": "user", "content": question}]
        messages = list(prompt)
        builder = TokenBuilder(chat.prompt_ids(prompt, TOOLS))
        for said, answers, ended in turns:
            defused = [chat.defuse(answer) for answer in answers]
            builder.add_sampled(sampled(extended.encode(said) + ((chat.end_of_turn,) if ended else ())))
            builder.add_tool(chat.between_turns(defused, ended=ended, refs=refs[: len(answers)]))
            messages += [{"role": "assistant", "content": said}]
            messages += [{"role": "tool", "content": answer, "name": "run"} for answer in defused]
            whole = chat.conversation.whole(prompt, TOOLS, chat.turns_of(messages[2:]))
            assert extended.decode(builder.ids) == extended.decode(extended.encode(whole))
            assert builder.ids == extended.encode(whole)

    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_sampled_is_encoded_again(extended: HubTokenizer, name: str) -> None:
    chat = chat_of(extended, FAMILIES[name])
    any_id = st.integers(0, 49151)  # ids that no tokenizer would choose, half characters and special tokens among them
    plain = chat.between_turns(["1"], ended=False)
    special = set(chat._tokenizer.special_tokens.values())

    @FEW
    @given(turns=st.lists(st.tuples(st.lists(any_id, max_size=8), SURROGATES), min_size=1, max_size=3))
    def check(turns: list[tuple[list[int], str]]) -> None:
        builder = TokenBuilder(chat.prompt_ids(START, TOOLS))
        given_ids, mask, messages = list(builder.ids), [], list(START)
        for ids, answer in turns:
            ids = [*ids, 5]
            defused = chat.defuse(answer)
            between = chat.between_turns([defused], ended=chat.has_ended(ids))
            builder.add_sampled(sampled(ids))
            builder.add_tool(between)
            given_ids += [*ids, *between]
            mask += [1] * len(ids) + [0] * len(between)
            messages.append({"role": "assistant", "content": chat.turn_text(ids)})
            messages.append({"role": "tool", "content": defused})
            # An answer has the marks of the boundary and no others, whatever a program printed.
            assert [i for i in between if i in special] == [i for i in plain if i in special]
        trajectory = builder.build()
        assert list(builder.ids) == given_ids == list(trajectory.ids)
        assert list(trajectory.response_mask) == mask
        assert len(trajectory.logprobs) == len(mask) == len(trajectory.response_ids)
        assert all((logprob != 0) == bool(one) for logprob, one in zip(trajectory.logprobs, mask, strict=True))
        kind = drift_of(chat, trajectory, messages, prompt_messages=len(START), tools=TOOLS)
        assert not kind.fault or FAMILIES[name].severity in ("PROMPT", "BETWEEN")

    check()


def test_half_a_surrogate_pair_in_a_prompt_is_named(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["Qwen-Qwen2.5-7B-Instruct"])
    with pytest.raises(ChatTemplateError, match=r"messages\[1\].content has half of a surrogate pair at character 2"):
        chat.prompt_ids([START[0], {"role": "user", "content": "ab\ud83d"}])


def test_turn_that_ends_with_the_other_end_of_llama_gets_no_second_end(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["meta-llama-Llama-3.1-8B-Instruct"])
    (eom,) = extended.encode("<|eom_id|>")
    assert chat.has_ended((7, eom))
    assert eom in chat.stop_token_ids
    assert extended.decode(chat.between_turns(["42"], ended=True)).startswith("<|start_header_id|>ipython")


def test_answers_carry_the_ids_that_the_model_gave_its_calls(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["mistralai-Mistral-Nemo-Instruct-2407"])
    refs = [CallRef("run", "a1B2c3D4e"), CallRef("run")]
    text = extended.decode(chat.between_turns(["1", "2"], ended=True, refs=refs))
    assert text == (
        '[TOOL_RESULTS]{"content": 1, "call_id": "a1B2c3D4e"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS]{"content": 2, "call_id": "call00001"}[/TOOL_RESULTS]'
    )
    assert chat.conversation.tool_message("1", refs[0], 0)["tool_call_id"] == "a1B2c3D4e"


def test_answers_name_the_function_where_the_template_does(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["openai-gpt-oss-120b"])
    text = extended.decode(chat.between_turns(["4"], ended=False, refs=[CallRef("run")]))
    assert text.startswith('<|call|><|start|>functions.run to=assistant<|channel|>commentary<|message|>"4"<|end|>')


def test_drift_kinds_are_told_apart(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["Qwen-Qwen2.5-7B-Instruct"])
    messages: list[Message] = [*START, {"role": "assistant", "content": "It is so."}, {"role": "tool", "content": "4"}]
    between = chat.between_turns(["4"], ended=False)
    letters = [extended.encode(letter)[0] for letter in "It is so."]

    def kind(prompt: tuple[int, ...], said: Sequence[int], after: tuple[int, ...]) -> DriftKind:
        builder = TokenBuilder(prompt)
        builder.add_sampled(sampled(said))
        builder.add_tool(after)
        builder.add_sampled(sampled([9, 9]))
        assert builder.build().segments[-2].kind is SegmentKind.TOOL
        return drift_of(chat, builder.build(), messages, prompt_messages=2, tools=())

    prompt, said = chat.prompt_ids(START), extended.encode("It is so.")
    assert kind(prompt, said, between) is DriftKind.EXACT
    assert kind(prompt, letters, between) is DriftKind.RETOKENIZED
    assert kind(prompt, said, between[:-1]) is DriftKind.BOUNDARY
    assert kind(prompt[1:], said, between) is DriftKind.UNREPEATABLE
    assert DriftKind.BOUNDARY.fault
    assert not DriftKind.RETOKENIZED.fault


def test_drift_is_counted_for_the_fraction_that_was_asked_for(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["Qwen-Qwen2.5-7B-Instruct"])
    trajectory = TokenBuilder(chat.prompt_ids(START)).build()
    wrong = TokenBuilder((1, 2, 3)).build()
    drift = DriftCounter(chat, 0.5)
    for trajectory_id in ("00000000", "7fffffff", "80000000", "ffffffff"):
        drift.see(trajectory_id, trajectory, START, prompt_messages=2, tools=())
    drift.see("0" * 32, wrong, START, prompt_messages=2, tools=())
    assert {kind: count for kind, count in drift.statistics().items() if count} == {
        DriftKind.EXACT: 2,
        DriftKind.UNREPEATABLE: 1,
    }
    assert drift.first_fault is None


def test_first_fault_is_named(extended: HubTokenizer) -> None:
    chat = chat_of(extended, FAMILIES["Qwen-Qwen2.5-7B-Instruct"])
    builder = TokenBuilder(chat.prompt_ids(START))
    builder.add_sampled(sampled([5]))
    builder.add_tool((9,))
    said: list[Message] = [*START, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "4"}]
    drift = DriftCounter(chat, 1.0)
    drift.see("f" * 32, builder.build(), said, prompt_messages=2, tools=())
    drift.see("e" * 32, builder.build(), said, prompt_messages=2, tools=())
    assert (drift.first_fault, drift.statistics()[DriftKind.BOUNDARY]) == ("f" * 32, 2)
