"""The parser of tool calls: every call is found, and every broken one is explained."""

from __future__ import annotations

import pytest

from rollout.tools import MalformedCall, ToolCall, parse_tool_calls

TAGS, THOUGHT = "print('</tool_call><tool_call>')", "print('<think></think>')"
CALL = '<tool_call>\n{"name": "f", "arguments": {"code": "print(1)"}}\n</tool_call>'


def problem(text: str) -> str:
    (call,) = parse_tool_calls(text)
    assert isinstance(call, MalformedCall), call
    return call.problem


def test_text_without_calls_has_none() -> None:
    assert parse_tool_calls("The answer is 4.\n#### 4") == ()
    assert parse_tool_calls("") == ()
    assert parse_tool_calls("</tool_call> tool_call <tool_calls>") == ()


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        pytest.param(f"Let me see.\n{CALL}\nDone.", {"code": "print(1)"}, id="between_other_text"),
        pytest.param('<tool_call>{"name":"f",\n "arguments":{}}   </tool_call>', {}, id="white_space_and_line_breaks"),
        pytest.param(CALL.replace("print(1)", TAGS), {"code": TAGS}, id="closing_tag_inside_a_string"),
        pytest.param(CALL.replace("print(1)", THOUGHT), {"code": THOUGHT}, id="thought_inside_a_call"),
        pytest.param('<tool_call>{"name": "f"}</tool_call>', {}, id="missing_arguments"),
    ],
)
def test_a_call_is_found(text: str, arguments: dict[str, str]) -> None:
    raw = text.partition("<tool_call>")[2].rpartition("</tool_call>")[0].strip()
    assert parse_tool_calls(text) == (ToolCall("f", arguments, raw),)


def test_several_calls_keep_their_order() -> None:
    calls = parse_tool_calls(CALL + CALL.replace('"f"', '"g"') + "<tool_call>{}</tool_call>" + CALL)
    assert [call.name if isinstance(call, ToolCall) else None for call in calls] == ["f", "g", None, "f"]


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
