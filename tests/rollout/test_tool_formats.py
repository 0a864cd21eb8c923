"""Formats of tool calls beside Hermes: every call is found, every broken one is explained, no text breaks a parser."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbox.errors import ConfigError
from rollout.tokens import ChatTemplate
from rollout.tools import FORMATS, MalformedCall, ToolCall, find_format

ROOT = Path(__file__).parents[2]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string"}, "n": {"type": "integer"}, "on": {"type": "boolean"}},
            },
        },
    }
]
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
WRITERS: dict[str, Any] = {
    "hermes": lambda n, a: f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>\n",
    "llama3_json": lambda n, a: json.dumps({"name": n, "parameters": a}) + ";",
    "mistral": lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a)}",
    "deepseek": lambda n, a: f"{BEGIN}function{SEP}{n}\n```json\n{json.dumps(a)}\n```{END}",
    "gpt_oss": lambda n, a: (
        f"<|start|>assistant to=functions.{n}<|channel|>commentary json<|message|>{json.dumps(a)}<|call|>"
    ),
}


def parse(name: str, text: str) -> list[Any]:
    """Calls as (name, arguments), malformed ones as their problem."""
    calls = FORMATS[name].parse(text, TOOLS)
    return [(call.name, call.arguments) if isinstance(call, ToolCall) else call.problem for call in calls]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama3_json", '{"name": "f", "parameters": {"code": "1"}}', [("f", {"code": "1"})]),
        ("llama3_json", '<|python_tag|>{"name": "f", "arguments": {}}', [("f", {})]),
        ("llama3_json", '{"type": "function", "function": "f", "parameters": {}}', [("f", {})]),
        ("llama3_json", '{"name": "f"}; {"name": "g"}', [("f", {}), ("g", {})]),
        ("llama3_json", '<think>{"name": "g"}</think>\n{"name": "f"}', [("f", {})]),
        ("llama3_json", 'So {"name": "f"} is it.', []),
        ("llama3_json", '{"answer": 4}', []),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "a"}, {"name": "g"}]', [("f", {}), ("g", {})]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"n": 1}[TOOL_CALLS]g[ARGS]{}', [("f", {"n": 1}), ("g", {})]),
        ("mistral", 'I call. [TOOL_CALLS] {"name": "f"}', [("f", {})]),
        ("mistral", "[TOOL_CALLS]f{}", [("f", {})]),
        ("deepseek", f'x{BEGIN}f{SEP}{{"n": 1}}{END}{BEGIN}g{SEP}{{}}{END}', [("f", {"n": 1}), ("g", {})]),
        ("deepseek", f'{BEGIN}function{SEP}f\n```json\n{{"n": 1}}\n```{END}', [("f", {"n": 1})]),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=code>\na\n\nb\n</parameter>\n</function>\n</tool_call>",
         [("f", {"code": "a\n\nb"})]),
        ("qwen3_coder", "<function=f><parameter=n>3</parameter><parameter=on>True</parameter></function>",
         [("f", {"n": 3, "on": True})]),
        ("qwen3_coder", "<function=f><parameter=n>three</parameter></function>", [("f", {"n": "three"})]),
        ("qwen3_coder", "<function=g><parameter=n>3</parameter></function>", [("g", {"n": "3"})]),
        ("glm45", "<tool_call>f\n<arg_key>code</arg_key>\n<arg_value>a\nb</arg_value>\n</tool_call>",
         [("f", {"code": "a\nb"})]),
        ("glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>", [("f", {"n": 3})]),
        ("gpt_oss", '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f '
         '<|constrain|>json<|message|>{"n": 1}', [("f", {"n": 1})]),
        ("gpt_oss", ' to=functions.f<|channel|>commentary json<|message|>{"n": 1}<|call|>', [("f", {"n": 1})]),
        ("gpt_oss", "<|channel|>final<|message|>It is 4. to=functions.f", []),
        ("gpt_oss", "<|channel|>analysis to=python<|message|>{}", [("python", {})]),
    ],
)  # fmt: skip
def test_calls_of_each_format_are_read(name: str, text: str, expected: list[Any]) -> None:
    assert parse(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama3_json", '{"name": "f", "parameters": {"code": "pri', "its JSON is cut off"),
        ("llama3_json", '{"name": "f", "parameters": 3}', '"parameters" must be a JSON object, but is a number'),
        ("llama3_json", '{"name": "f" "parameters": {}}', "line 1, column 14"),
        ("llama3_json", "<|python_tag|>print(1)", "line 1, column 1"),
        ("mistral", "[TOOL_CALLS]", "it is empty"),
        ("mistral", '[TOOL_CALLS]["f"]', "must be a JSON object, but is a string"),
        ("mistral", "[TOOL_CALLS]3", "a list of calls must follow"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{'a': 1}", "double quotes"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "argum', "its JSON is cut off"),
        ("deepseek", f"{BEGIN}f {{}}{END}", f"{SEP} is missing"),
        ("deepseek", f"{BEGIN}f{SEP}{{}}", f"it is not closed: {END} is missing"),
        ("deepseek", f"{BEGIN}f{SEP}{{'a'}}{END}", "double quotes"),
        ("deepseek", f"{BEGIN}f{SEP}{{}} and so on{END}", "must follow"),
        ("deepseek", f"{BEGIN}function{SEP}f\n```json\n{{\n```{END}", "its JSON is wrong"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=code>\nprint(", 'parameter "code" is not closed'),
        ("qwen3_coder", "<tool_call><function=f></tool_call>", "must follow"),
        ("qwen3_coder", "<tool_call>\n<function=f>", "it is not closed"),
        ("qwen3_coder", "<tool_call>\n<function=", "cut off in its name"),
        ("qwen3_coder", "<function=f>code here</function>", "must follow"),
        ("qwen3_coder", "<function=f><parameter=n>1</parameter><parameter=n>2</parameter></function>", "given twice"),
        ("glm45", '<tool_call>{"name": "f"}</tool_call>', "name of the function is missing"),
        ("glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>3", "must follow"),
        ("glm45", "<tool_call>f\n", "it is not closed"),
        ("gpt_oss", '<|channel|>commentary to=functions.f<|message|>{"n": ', "its JSON is cut off"),
        ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{n}<|call|>", "double quotes"),
        (
            "gpt_oss",
            "<|channel|>commentary to=functions.f<|message|>[]<|call|>",
            "must be a JSON object, but is a list",
        ),
    ],
)
def test_broken_calls_say_what_is_wrong(name: str, text: str, expected: str) -> None:
    (call,) = FORMATS[name].parse(text, TOOLS)
    assert isinstance(call, MalformedCall), call
    assert expected in call.problem
    assert len(call.problem) < 300


def test_ids_that_the_model_gives_its_calls_are_kept() -> None:
    listed = FORMATS["mistral"].parse('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "a1B2c3D4e"}]')
    named = FORMATS["mistral"].parse("[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}[TOOL_CALLS]g[ARGS]{}")
    assert [call.ref.call_id for call in (*listed, *named)] == ["a1B2c3D4e", "a1B2c3D4e", None]


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("llama3_json", "gpt_oss")])
def test_closed_thoughts_hold_no_calls(name: str) -> None:
    call = {
        "qwen3_coder": "<tool_call><function=f></function></tool_call>",
        "glm45": "<tool_call>f</tool_call>",
    }.get(name) or WRITERS[name]("f", {})
    assert parse(name, f"<think>Shall I? {call}</think>No.") == []
    assert parse(name, f"<think>{call}</think>{call}") == [("f", {})]
    assert parse(name, f"<think>I must. {call}") == [("f", {})]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=30)
@given(wanted=CALLS)
def test_well_formed_calls_are_read_back(name: str, wanted: list[tuple[str, dict[str, Any]]]) -> None:
    text = "".join(WRITERS[name](n, a) for n, a in wanted)
    assert parse(name, text.removesuffix(";")) == wanted


MARKS = """<tool_call> </tool_call> <think> </think> <function=f> <function= </function> <parameter=n> </parameter> { }
" \\ [ ] <arg_key> </arg_key> <arg_value> </arg_value> [TOOL_CALLS] [ARGS] [CALL_ID] <|channel|> <|message|> <|call|>
to=f <|start|>assistant ; , f "name": ``` <|python_tag|>"""
PIECES = st.sampled_from([*MARKS.split(), SEP, BEGIN, END, "\n", " "])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(text=st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=40))
def test_no_text_breaks_a_parser(name: str, text: str) -> None:
    for call in FORMATS[name].parse(text, TOOLS):
        assert call.raw in text
        assert isinstance(call, ToolCall) or call.problem


def test_unknown_formats_are_refused_by_name(chat: ChatTemplate) -> None:
    assert find_format("auto", chat).name == "hermes"
    assert find_format("mistral", chat).name == "mistral"
    with pytest.raises(ConfigError, match=r"tool_format is 'hermse', must be one of auto, hermes, .*sglang:NAME"):
        find_format("hermse", chat)


def test_without_sglang_its_parsers_are_refused(chat: ChatTemplate) -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("sglang is installed")
    with pytest.raises(ConfigError, match=r"tool_format is 'sglang:kimi_k2', but sglang can't be imported"):
        find_format("sglang:kimi_k2", chat)


PROGRAM = """
import json
from fairbox.errors import ConfigError
from rollout.tools.formats.sglang_parsers import SglangFormat
tools = json.loads(sys.argv[1])
call = ("<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>"
        '{"n": 1}<|tool_call_end|><|tool_calls_section_end|>')
kimi = SglangFormat("kimi_k2")
texts = [call.replace("NAME", "f"), call.replace("NAME", "unknown"), "<think>" + call + "</think>No.",
         "<|tool_calls_section_begin|>nothing", "No call."]
for text in texts:
    print([(type(each).__name__, each.name, getattr(each, "arguments", None)) for each in kimi.parse(text, tools)])
try:
    SglangFormat("no_such")
except ConfigError as error:
    print(error)
"""


@pytest.mark.sglang
@pytest.mark.timeout(300)
def test_parsers_of_sglang_read_calls() -> None:
    python = os.environ.get("FAIRBOX_SGLANG_PYTHON")
    if python is None:
        pytest.skip("FAIRBOX_SGLANG_PYTHON names no interpreter with sglang; `make test-sglang` makes one")
    # An environment of its own, whose pins are not ours.
    command = [python, "-W", "ignore", "-c", f"import sys{PROGRAM}", json.dumps(TOOLS)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    *parsed, refused = done.stdout.splitlines()[-6:]
    assert parsed == [
        "[('ToolCall', 'f', {'n': 1})]",
        "[('ToolCall', 'unknown', {'n': 1})]",
        "[]",
        "[('MalformedCall', '', None)]",
        "[]",
    ]
    assert "sglang's parsers are: " in refused
