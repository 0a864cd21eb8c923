"""docs/reference/model-text.md lists what fairbox writes into a conversation: the code's texts against the page's."""

from __future__ import annotations

import re
from typing import Any

import pytest

from executor_service import Cause, Display, ExecutionResult, Limits, Outcome, Output
from executor_service.programs.verdict import judge
from executor_service.sandbox.report import Killed, Report
from rollout.envs.code_search.finish import LocalizationFinish
from rollout.loop.condense import condensed
from rollout.testing import ScriptedTool
from rollout.tokens.conversation import MessageTurn
from rollout.tools import MalformedCall, ToolCall
from rollout.tools.code.bash import BashTool
from rollout.tools.code.code_interpreter import CodeInterpreter
from rollout.tools.code.executor_tool import NEW_SESSION
from rollout.tools.code.program_text import describe
from rollout.tools.finish import FinishTool
from rollout.tools.formats.calls import MAX_CALLS
from rollout.tools.formats.marked import parse_tool_calls
from rollout.tools.toolbox import Toolbox
from tests.pages import DOCS

_NOTHING = Output(b"", 0)


def listed() -> list[re.Pattern[str]]:
    """Patterns of all texts on the page: those in code quotes and in text blocks, with anything for `...`."""
    page = (DOCS / "reference" / "model-text.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    quoted = re.findall(r"`([^`]+)`", re.sub(r"```text\n.*?\n```", "", page, flags=re.DOTALL))
    texts = [" ".join(text.split()) for text in (*quoted, *blocks)]
    return [re.compile(".+".join(map(re.escape, text.split("..."))), re.DOTALL) for text in texts if text != "..."]


def check(*texts: str) -> None:
    """AssertionError with the texts that the page does not list."""
    patterns = listed()
    assert len(patterns) > 40
    assert not [text for text in texts if not any(pattern.fullmatch(text) for pattern in patterns)]


async def test_answers_to_calls_that_are_not_run() -> None:
    calls: list[ToolCall | MalformedCall] = [
        MalformedCall("its JSON is cut off", ""),
        ToolCall("python", {}, ""),
        ToolCall("echo", {}, ""),
        ToolCall("echo", {"text": 3}, ""),
        ToolCall("echo", {"text": "x"}, ""),
    ]
    box = Toolbox([ScriptedTool(lambda arguments: "ok"), FinishTool()])
    texts = [answer.text for answer in await box.answer("t", calls, run=4, time_limit_s=None)]
    ends = [ToolCall("finish", {"message": "6"}, ""), ToolCall("echo", {"text": "x"}, "")]
    texts += [answer.text for answer in await box.answer("t", ends, run=1, time_limit_s=None)]
    assert len(texts) == 7
    check(*texts)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        '{"name": "a", "arguments": ' + "[" * 5000,
        '{"a" 1}',
        "[]",
        "{}",
        '{"name": 3}',
        '{"name": "a", "arguments": 1}',
    ],
)
def test_reasons_of_malformed_calls(body: str) -> None:
    (call,) = parse_tool_calls(f"<tool_call>\n{body}\n</tool_call>")
    assert isinstance(call, MalformedCall)
    check(call.problem)


def test_the_call_after_the_last_that_is_read() -> None:
    text = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n' * (MAX_CALLS + 2)
    *_, last = parse_tool_calls(text)
    assert isinstance(last, MalformedCall)
    check(last.problem)


@pytest.mark.parametrize("killed", [Killed.WALL, Killed.CPU, Killed.MEMORY, Killed.PROCESSES, Killed.OUTPUT])
def test_limits_of_programs(killed: Killed) -> None:
    limits = Limits(wall_time_s=5, cpu_time_s=5, memory_bytes=1 << 28, processes=64, output_bytes=1000)
    outcome, cause, message = judge(Report(killed, 0, 9, _NOTHING, _NOTHING), limits)
    check(describe(ExecutionResult(outcome, cause, message=message), max_chars=100).text)


def test_other_lines_of_answers() -> None:
    def shown(outcome: Outcome, **fields: Any) -> str:
        return describe(ExecutionResult(outcome, Cause.POLICY, **fields), max_chars=20).text

    check(
        shown(Outcome.FINISHED),
        shown(Outcome.FINISHED, displays=(Display({"image/png": bytes(9)}),)),
        shown(Outcome.NONZERO_EXIT, exit_code=3),
        shown(Outcome.SIGNALED, signal=11),
        shown(Outcome.FINISHED, stdout=Output(b"x" * 50, 50)).splitlines()[1],
        NEW_SESSION,
    )


def test_the_line_in_place_of_a_condensed_answer() -> None:
    turns = condensed([MessageTurn("", ("long " * 100,), ())], keep_last=0)
    assert turns is not None
    check(turns[0].answers[0])


@pytest.mark.parametrize("tool", [CodeInterpreter, BashTool, FinishTool, LocalizationFinish])
def test_descriptions_of_tools(tool: Any) -> None:
    schema = tool.default_schema
    check(schema.name, schema.description, *(each.description for each in schema.parameters.values()))
