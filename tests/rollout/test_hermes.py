"""The parser of tool calls: every call is found, and every broken one is explained."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.tools import MalformedCall, ToolCall, parse_tool_calls

CALL = '<tool_call>\n{"name": "f", "arguments": {"code": "print(1)"}}\n</tool_call>'


def problem(text: str) -> str:
    (call,) = parse_tool_calls(text)
    assert isinstance(call, MalformedCall), call
    return call.problem


def test_text_without_calls_has_none() -> None:
    assert parse_tool_calls("The answer is 4.\n#### 4") == ()
    assert parse_tool_calls("") == ()
    assert parse_tool_calls("</tool_call> tool_call <tool_calls>") == ()


def test_call_is_found_between_other_text() -> None:
    (call,) = parse_tool_calls(f"Let me see.\n{CALL}\nDone.")
    assert call == ToolCall("f", {"code": "print(1)"}, '{"name": "f", "arguments": {"code": "print(1)"}}')


def test_several_calls_keep_their_order() -> None:
    calls = parse_tool_calls(CALL + CALL.replace('"f"', '"g"') + "<tool_call>{}</tool_call>" + CALL)
    assert [call.name if isinstance(call, ToolCall) else None for call in calls] == ["f", "g", None, "f"]


def test_white_space_and_line_breaks_do_not_matter() -> None:
    (call,) = parse_tool_calls('<tool_call>{"name":"f",\n "arguments":{}}   </tool_call>')
    assert call == ToolCall("f", {}, '{"name":"f",\n "arguments":{}}')


def test_closing_tag_inside_a_string_belongs_to_the_string() -> None:
    code = 'print("</tool_call><tool_call>")'
    (call,) = parse_tool_calls(f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'code': code}})}</tool_call>")
    assert isinstance(call, ToolCall)
    assert call.arguments == {"code": code}


def test_calls_in_closed_thoughts_are_not_calls() -> None:
    assert parse_tool_calls(f"<think>Shall I? {CALL}</think>No.") == ()
    calls = parse_tool_calls(f"<think>{CALL}</think>{CALL.replace('f', 'g', 1)}")
    assert len(calls) == 1


def test_calls_after_an_unclosed_thought_count() -> None:
    (call,) = parse_tool_calls(f"<think>I need the tool.\n{CALL}")
    assert isinstance(call, ToolCall)


def test_thought_inside_a_call_is_text() -> None:
    code = "print('<think></think>')"
    (call,) = parse_tool_calls(f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'code': code}})}</tool_call>")
    assert isinstance(call, ToolCall)
    assert call.arguments["code"] == code


def test_missing_arguments_are_none_given() -> None:
    assert parse_tool_calls('<tool_call>{"name": "f"}</tool_call>') == (ToolCall("f", {}, '{"name": "f"}'),)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", "it is empty"),
        ("  \n", "it is empty"),
        ("print(1)", "line 1, column 1"),
        ('{"name": "f", "arguments": {"code": "a"}', "line 1, column 41"),
        ('{"name": "f", "arguments": {"code": "a" "b"}}', "Expecting ',' delimiter"),
        ('{"name": "f",\n"arguments": {"code": "\\("}}', "line 2, column 24"),
        ('{"name": "f", "arguments": {"code": "a\nb"}}', "Invalid control character"),
        ("{'name': 'f'}", "Expecting property name enclosed in double quotes"),
        ('{"name": "f", "arguments": {"x": NaN}}', "NaN is no JSON value"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "-Infinity is no JSON value"),
        ('{"name": "f", "arguments": {}}, "id": 1}', 'must follow, but there is ", "id": 1}"'),
        ('{"name": "f"} thanks', "must follow"),
        ('[{"name": "f"}]', "must be a JSON object, but is a list"),
        ('"f"', "must be a JSON object, but is a string"),
        ("3", "must be a JSON object, but is a number"),
        ("true", "must be a JSON object, but is a boolean"),
        ("null", "must be a JSON object, but is null"),
        ('{"arguments": {}}', '"name" is missing'),
        ('{"name": 3, "arguments": {}}', '"name" must be the name of a function, but is a number'),
        ('{"name": "", "arguments": {}}', '"name" must be the name of a function, but is an empty string'),
        ('{"name": "f", "arguments": "code"}', '"arguments" must be a JSON object, but is a string'),
        ('{"name": "f", "arguments": null}', '"arguments" must be a JSON object, but is null'),
        ('{"name": "f", "arguments": ' + "[" * 100_000, "nested too deeply"),
        ('{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}", "can't be read"),
    ],
)
def test_broken_call_says_what_is_wrong_and_where(body: str, expected: str) -> None:
    assert expected in problem(f"<tool_call>{body}</tool_call>")


@pytest.mark.parametrize(
    "cut", ['{"name": "f", "argu', '{"name": "f", "arguments": {"code": "print(', '{"name": "f",', "{"]
)
def test_cut_off_call_is_named_so(cut: str) -> None:
    assert problem(f"<tool_call>\n{cut}") == "its JSON is cut off"


def test_unclosed_call_is_named_so() -> None:
    assert problem('<tool_call>{"name": "f", "arguments": {}}\n') == "it is not closed: </tool_call> is missing"


def test_unclosed_call_ends_before_the_next_one() -> None:
    calls = parse_tool_calls('<tool_call>{"name": "f", "arguments": {}}\n' + CALL)
    assert [type(call) for call in calls] == [MalformedCall, ToolCall]


def test_error_text_is_bounded() -> None:
    assert len(problem("<tool_call>" + "x" * 100_000 + "</tool_call>")) < 300
    assert len(problem('<tool_call>{"name": "f"}' + "x" * 100_000 + "</tool_call>")) < 300


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "f"',
        '"arguments": {}',
        "}",
        "{",
        '"',
        "\\",
        "\n",
        "a",
        ", ",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=80))
def test_no_text_breaks_the_parser(text: str) -> None:
    calls = parse_tool_calls(text)
    assert len(calls) <= text.count("<tool_call>")
    for call in calls:
        assert call.raw in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=6), JSON, max_size=3)), max_size=4
    )
)
def test_every_well_formed_call_is_read_back(wanted: list[tuple[str, dict[str, object]]]) -> None:
    text = "".join(f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>\n" for n, a in wanted)
    calls = parse_tool_calls(text)
    assert [(call.name, call.arguments) for call in calls if isinstance(call, ToolCall)] == wanted
