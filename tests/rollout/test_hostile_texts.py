"""Text from a model is untrusted: none blocks the loop of a rollout, or makes a record larger than the text itself.

The texts are so large that a parser in quadratic time takes minutes, which the tests' own timeout ends; one in linear
time takes milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout.rewards.code import extract_code
from rollout.tools import FORMATS, MalformedCall, ToolCall
from rollout.tools.formats.calls import MAX_CALLS, MAX_DEPTH, without_thoughts

SIZE = 1_000_000
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "array"}}}}}]
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
PIECES = {
    "broken_json": "<tool_call>\n{",
    "strings": '<tool_call>{"a": "',
    "thoughts": "<think></think>",
    "open_thoughts": "<think><tool_call>f",
    "glm_keys": "<tool_call>f <arg_key>",
    "glm_spaces": "<tool_call>f\n<arg_key>" + " " * 5000,
    "glm_values": "<tool_call>f<arg_key>k</arg_key><arg_value>",
    "coder_parameters": "<function=f><parameter=p>",
    "coder_spaces": "<tool_call>" + " " * 5000,
    "mistral": "[TOOL_CALLS]f [CALL_ID] 1 ",
    "deepseek": f"{BEGIN}function{SEP}f ``` ",
    "deepseek_names": f"{BEGIN}f{SEP}",
    "harmony": "<|start|>assistant to=functions.f<|message|>{",
    "harmony_headers": "<|start|>assistant",
    "llama": '{"name": "f"};',
    "kimi": "<|tool_call_begin|>functions.f:0 ",
    "functionary": ">>>f\n",
    "lists": '<tool_calls>{"name": "f"}',
    "invokes": '<invoke name="f"><parameter name="n">',
    "elements": ']<]minimax[>[<invoke name="f">]<]minimax[>[<n>]<]minimax[>[<item>',
    "nested_elements": "]<]minimax[>[<n>",
    "kimi_k3": '<|open|>call tool="f"<|sep|><|open|>argument key="n"<|sep|>',
    "gemma": '<|tool_call>call:f{n:[<|"|>',
    "gemma_lists": "<|tool_call>call:f{n:" + "[" * 5000,
    "python": "<|tool_call_start|>[f(n='",
    "python_escapes": "<|tool_call_start|>[f(n='" + "\\\\" * 5000,
    "python_numbers": "<|tool_call_start|>[f(n=" + "9" * 5000,
    "python_quotes": '<|tool_call_start|>[f(n="""' + '"' * 5000,
    "whole": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
}


ITEM = "]<]minimax[>[<item>1]<]minimax[>[</item>"
CLOSED = "]<]minimax[>[</n>]<]minimax[>[</invoke>"


@pytest.mark.timeout(60)
def test_lists_in_marks_are_read_in_one_pass() -> None:
    count = 8 * SIZE // len(ITEM)
    text = f']<]minimax[>[<invoke name="f">]<]minimax[>[<n>{ITEM * count} {CLOSED}'
    (call,) = FORMATS["minimax_m3"].parse(text, TOOLS)
    assert isinstance(call, ToolCall)
    assert len(call.arguments["n"]) == count


def text_of(piece: str) -> str:
    return piece * (SIZE // len(piece) + 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_longer_than_it_is_long(name: str, piece: str) -> None:
    calls = FORMATS[name].parse(text_of(PIECES[piece]), TOOLS)
    assert len(calls) <= MAX_CALLS + 1
    assert sum(len(call.raw) for call in calls) <= 2 * SIZE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 12_000),
        ("mistral", "[TOOL_CALLS]" + json.dumps([{"name": "f", "arguments": {}}] * 12_000)),
        ("qwen3_coder", "<function=f></function>" * 12_000),
        ("glm45", "<tool_call>f</tool_call>" * 12_000),
        ("deepseek", f"{BEGIN}f{SEP}{{}}{END}" * 12_000),
        ("gpt_oss", "<|start|>assistant to=functions.f<|message|>{}<|call|>" * 12_000),
        ("llama3_json", '{"name": "f"};' * 12_000),
    ],
)
def test_calls_of_a_turn_are_bounded_and_the_model_is_told(name: str, text: str) -> None:
    calls = FORMATS[name].parse(text, TOOLS)
    assert [call.name for call in calls] == ["f"] * MAX_CALLS + [""]
    assert all(isinstance(call, ToolCall) for call in calls[:-1])
    last = calls[-1]
    assert isinstance(last, MalformedCall)
    assert last.problem.startswith(f"a turn may make at most {MAX_CALLS} calls")
    assert sum(len(call.raw) for call in calls) <= len(text)


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
def test_arguments_that_are_nested_too_deeply_are_malformed(levels: int) -> None:
    value: Any = []
    for _ in range(levels - 2):
        value = [value]
    (call,) = FORMATS["hermes"].parse(f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'n': value}})}</tool_call>")
    assert isinstance(call, ToolCall) == (levels == MAX_DEPTH)
    if isinstance(call, MalformedCall):
        assert call.problem == "its JSON is nested too deeply"
    (call,) = FORMATS["glm45"].parse(
        f"<tool_call>f<arg_key>n</arg_key><arg_value>{json.dumps([value])}</arg_value></tool_call>", TOOLS
    )
    assert isinstance(call, ToolCall)
    assert isinstance(call.arguments["n"], list) == (levels == MAX_DEPTH), "stays text, which the tool's schema refuses"


def test_arguments_of_glm_are_read_whatever_stands_around_their_keys() -> None:
    text = "<tool_call> f\n <arg_key>\n a b </arg_key>\n\n<arg_value> x </arg_value>"
    (call,) = FORMATS["glm45"].parse(text + "<arg_key></arg_key><arg_value></arg_value>\n</tool_call>")
    assert isinstance(call, ToolCall)
    assert call.arguments == {"a b": " x ", "": ""}


@pytest.mark.timeout(60)
def test_thoughts_are_left_out_in_one_pass() -> None:
    assert without_thoughts("a<think>b</think>c<think>d") == "ac<think>d"
    assert without_thoughts(text_of("<think>")) == text_of("<think>")
    assert without_thoughts(text_of("<think></think>")) in ("", "<think>")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["```" + " " * SIZE + "`\n", "```\n", "~~~", "```python\n`", " " * 100 + "```x\n"])
def test_programs_are_found_in_one_pass(piece: str) -> None:
    extract_code(text_of(piece))
