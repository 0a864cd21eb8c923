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
from rollout.tools.formats.calls import THINK

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
    "kimi_k2": lambda n, a: (
        f"<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{json.dumps(a)}<|tool_call_end|>"
    ),
    "solar": lambda n, a: (
        f"<|tool_call:begin|>a1b2<|tool_call:name|>{n}<|tool_call:args|>{json.dumps(a)}<|tool_call:end|>"
    ),
    "granite3": lambda n, a: f"<|tool_call|>[{json.dumps({'name': n, 'arguments': a})}]",
    "nemotron2": lambda n, a: f"<TOOLCALL>[{json.dumps({'name': n, 'arguments': a})}]</TOOLCALL>",
    "tool_calls": lambda n, a: f"<tool_calls>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_calls>",
    "gigachat3": lambda n, a: f"<|function_call|>{json.dumps({'name': n, 'arguments': a})}",
    "apertus": lambda n, a: f"<|tools_prefix|>[{json.dumps({n: a})}]<|tools_suffix|>",
    "command_r7b": lambda n, a: f"<|START_ACTION|>[{json.dumps({'tool_name': n, 'parameters': a})}]<|END_ACTION|>",
    "command_r": lambda n, a: f"Action:\n```json\n[{json.dumps({'tool_name': n, 'parameters': a})}]```",
    "functionary31": lambda n, a: f"<function={n}>{json.dumps(a)}</function>",
    "functionary32": lambda n, a: f">>>{n}\n{json.dumps(a)}",
    "gemma4": lambda n, a: f"<|tool_call>call:{n}{gemma(a)}<tool_call|>",
    "lfm2": lambda n, a: f"<|tool_call_start|>[{n}({python(a)})]<|tool_call_end|>",
}
# A call of `f` without arguments in the formats that have no writer, because their arguments are text.
TAGGED = {
    "qwen3_coder": "<tool_call><function=f></function></tool_call>",
    "glm45": "<tool_call>f</tool_call>",
    "hunyuan3": "<tool_call:opensource>f<tool_sep:opensource></tool_call:opensource>",
    "minimax_m2": '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>',
    "minimax_m3": ']<]minimax[>[<invoke name="f">]<]minimax[>[</invoke>',
    "deepseek_v32": '<｜DSML｜invoke name="f"></｜DSML｜invoke>',
    "muse": '<atem:invoke name="f"></atem:invoke>',
    "minicpm5": '<function name="f"></function>',
    "kimi_k3": '<|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|>',
}


def gemma(value: Any) -> str:
    """A value as Gemma 4 writes it."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{gemma(key)}:{gemma(each)}" for key, each in value.items()) + "}"
    return "[" + ",".join(map(gemma, value)) + "]" if isinstance(value, list) else json.dumps(value)


def python(arguments: dict[str, Any]) -> str:
    """Keyword arguments in Python; names that are none stand in quotes."""
    return ", ".join(f"{key if key.isidentifier() else repr(key)}={each!r}" for key, each in arguments.items())


M3 = (
    'M<invoke name="g">M<a>1M</a>M<list>M<item>M<k>xM</k>M</item>M<item>M<k>yM</k>M</item>M</list>M<d>{}M</d>M</invoke>'
)


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
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>"
         '{"n": 1}<|tool_call_end|><|tool_calls_section_end|>', [("f", {"n": 1})]),
        ("tool_calls", '<tool_calls>\n{"name": "f", "arguments": {}}\n{"name": "g"}\n</tool_calls>',
         [("f", {}), ("g", {})]),
        ("tool_calls", '<tool_calls>[{"name": "f", "arguments": {}}, {"name": "g"}]</tool_calls>',
         [("f", {}), ("g", {})]),
        ("functionary32", 'f\n{"n": 1}', [("f", {"n": 1})]),
        ("functionary32", 'all\nI call. >>>f\n{"n": 1}>>>g\n{}', [("f", {"n": 1}), ("g", {})]),
        ("functionary32", "all\nThat is >>> 3.", []),
        ("functionary31", '<function=f>{"n": 1}</function>', [("f", {"n": 1})]),
        ("apertus", '<|tools_prefix|>[{"f": {"n": 1}}, {"g": {}}]', [("f", {"n": 1}), ("g", {})]),
        ("hunyuan3", "<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n"
         "<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>", [("f", {"n": 3})]),
        ("minimax_m2", '<invoke name="f">\n<parameter name="code">\na</parameter>\n<parameter name="n">3</parameter>\n'
         '</invoke>\n<invoke name="g"></invoke>', [("f", {"code": "\na", "n": 3}), ("g", {})]),
        ("deepseek_v32", '<｜DSML｜invoke name="g">\n<｜DSML｜parameter name="a" string="true">3</｜DSML｜parameter>\n'
         '<｜DSML｜parameter name="b" string="false">[3]</｜DSML｜parameter>\n</｜DSML｜invoke>',
         [("g", {"a": "3", "b": [3]})]),
        ("minicpm5", '<function name="f"><param name="code"><![CDATA[a</param>]]></param><param name="n">3</param>'
         "</function>", [("f", {"code": "a</param>", "n": 3})]),
        ("kimi_k3", '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="code" type="string"<|sep|>1'
         '<|close|>argument<|sep|><|open|>argument key="n" type="number"<|sep|>3<|close|>argument<|sep|>'
         "<|close|>call<|sep|>", [("f", {"code": "1", "n": 3})]),
        ("minimax_m3", M3.replace("M", "]<]minimax[>["),
         [("g", {"a": "1", "list": [{"k": "x"}, {"k": "y"}], "d": "{}"})]),
        ("minimax_m3", '<invoke name="g">M<a>M<a>1M</a>M<b>2M</b>M</a>M</invoke>'.replace("<i", "M<i").replace(
            "M<", "]<]minimax[>[<"), [("g", {"a": {"a": "1", "b": "2"}})]),
        ("gemma4", '<|tool_call>call:f{code:<|"|>print("a, b}")<|"|>,n:-3,on:true,x:[1.5,null],d:{k:<|"|>v<|"|>}}'
         "<tool_call|>", [("f", {"code": 'print("a, b}")', "n": -3, "on": True, "x": [1.5, None], "d": {"k": "v"}})]),
        ("lfm2", "<|tool_call_start|>[f(code='a\nb', n=3), g(x={\"a\": (1, -2.5e3)}, y=None)]<|tool_call_end|>",
         [("f", {"code": "a\nb", "n": 3}), ("g", {"x": {"a": [1, -2500.0]}, "y": None})]),
        ("lfm2", "<|tool_call_start|>[f(code=\"\"\"it's \\\"so\\\" \\n\\x41\"\"\")]<|tool_call_end|>",
         [("f", {"code": 'it\'s "so" \nA'})]),
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
        ("glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>3", 'parameter "n" is not closed'),
        ("kimi_k2", '<|tool_call_begin|>f{"n": 1}<|tool_call_end|>', "<|tool_call_argument_begin|> is missing"),
        ("tool_calls", '<tool_calls>{"name": "f"} x</tool_calls>', "</tool_calls> must follow"),
        ("apertus", '<|tools_prefix|>[{"f": {}, "g": {}}]', "one key"),
        ("command_r7b", '<|START_ACTION|>[{"name": "f"}]<|END_ACTION|>', '"tool_name" is missing'),
        ("functionary31", "<function=>{}</function>", "name of the function is missing"),
        ("functionary32", 'f\n{"n": ', "its JSON is cut off"),
        ("minimax_m2", '<invoke name="f"><parameter name="n">3', 'parameter "n" is not closed'),
        ("kimi_k3", '<|open|>call tool="f" index="1"<|sep|>3<|close|>call<|sep|>', "must follow"),
        ("gemma4", "<|tool_call>call:f{n:3", "} must follow, but it is cut off"),
        ("gemma4", "<|tool_call>call:f{n:x}<tool_call|>", "a value must follow"),
        ("gemma4", '<|tool_call>call:f{n:<|"|>x}<tool_call|>', "a string is not closed"),
        ("lfm2", "<|tool_call_start|>[f(3)]<|tool_call_end|>", "an argument must be NAME=VALUE"),
        ("lfm2", "<|tool_call_start|>[f(code='a' 'b')]<|tool_call_end|>", ") must follow"),
        ("lfm2", "<|tool_call_start|>[f(n=1, n=2)]<|tool_call_end|>", "given twice"),
        ("lfm2", "<|tool_call_start|>f(n=1)<|tool_call_end|>", "[ must follow"),
        ("lfm2", "<|tool_call_start|>[f(n=" + "9" * 5000 + ")]<|tool_call_end|>", "a number has more than"),
        ("lfm2", "<|tool_call_start|>[f(n=1e999)]<|tool_call_end|>", "the number 1e999 is too large"),
        ("lfm2", "<|tool_call_start|>[f(n=" + "[" * 70 + "]" * 70 + ")]<|tool_call_end|>", "nested too deeply"),
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
    others = {name: FORMATS[name].parse(WRITERS[name]("f", {}))[0] for name in ("kimi_k2", "solar")}
    assert {name: call.ref.call_id for name, call in others.items()} == {"kimi_k2": "functions.f:0", "solar": "a1b2"}


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("llama3_json", "gpt_oss")])
def test_closed_thoughts_hold_no_calls(name: str) -> None:
    call = TAGGED.get(name) or WRITERS[name]("f", {})
    begin, end = getattr(FORMATS[name], "thought", THINK)
    assert parse(name, f"{begin}Shall I? {call}{end}No.") == []
    assert parse(name, f"{begin}{call}{end}{call}") == [("f", {})]
    assert parse(name, f"{begin}I must. {call}") == [("f", {})]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.from_regex(r"[b-z][a-z_]{0,8}", fullmatch=True), ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=30)
@given(wanted=CALLS)
def test_well_formed_calls_are_read_back(name: str, wanted: list[tuple[str, dict[str, Any]]]) -> None:
    text = "".join(WRITERS[name](n, a) for n, a in wanted)
    assert parse(name, text.removesuffix(";")) == wanted


MARKS = """<tool_call> </tool_call> <think> </think> <function=f> <function= </function> <parameter=n> </parameter> { }
" \\ [ ] <arg_key> </arg_key> <arg_value> </arg_value> [TOOL_CALLS] [ARGS] [CALL_ID] <|channel|> <|message|> <|call|>
to=f <|start|>assistant ; , f "name": ``` <|python_tag|> <|tool_call_begin|> <|tool_call_argument_begin|> <|"|> : =
<tool_calls> </tool_calls> >>> <|tool_call>call:f{ <tool_call|> <|tool_call_start|>[f( <|tool_call_end|> ' ( ) 3 true
<invoke name="f"> <parameter name="n"> </invoke> ]<]minimax[>[ <item> </item> <n> </n> <|open|>call tool="f" <|sep|>"""
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
