"""Schemas, texts and the toolbox: every call gets an answer, in order, with an outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor_service import Cause, Compilation, Display, ExecutionResult, Outcome, Output
from fairbox.errors import ConfigError
from rollout.testing import ScriptedTool
from rollout.tools import MalformedCall, ParameterSchema, ToolCall, ToolOutcome, ToolResponse, ToolSchema
from rollout.tools.code.program_text import describe
from rollout.tools.text import cut_text
from rollout.tools.toolbox import Toolbox

SCHEMA = ToolSchema(
    name="code_interpreter",
    description="A tool for executing code.",
    parameters={"code": ParameterSchema("string", "The code to execute.")},
    required=("code",),
)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"code": "x"}, None),
        ({"code": "x", "executes": "True", "timeout": 10**9}, None),
        ({}, 'the argument "code" is missing'),
        ({"Code": "x"}, 'the argument "code" is missing'),
        ({"code": 3}, 'the argument "code" must be string'),
        ({"code": None}, 'the argument "code" must be string'),
    ],
)
def test_arguments_are_checked_and_unknown_ones_tolerated(arguments: dict[str, Any], problem: str | None) -> None:
    assert SCHEMA.problem(arguments) == problem


def test_types_are_those_of_json() -> None:
    def problem(value: Any, kind: str, *, enum: tuple[str, ...] | None = None, **extra: Any) -> str | None:
        return ToolSchema("t", "", {"x": ParameterSchema(kind, "", enum, extra)}).problem({"x": value})

    assert problem(True, "integer") == 'the argument "x" must be integer'
    assert problem("1", "number") == 'the argument "x" must be number'
    assert problem(1, "number") is None
    assert problem(False, "boolean") is None
    assert problem("b", "string", enum=("a", "c")) == 'the argument "x" must be one of a, c'
    assert problem([1, "a"], "array", items={"type": "integer"}) == 'the argument "x[1]" must be integer'
    assert problem(0, "integer", minimum=1) == 'the argument "x" is wrong: 0 is less than the minimum of 1'
    assert len(problem("a" * 9999, "string", maxLength=3) or "") < 400
    file = {"type": "object", "required": ["file"], "properties": {"name": {"type": ["string", "null"]}}}
    assert problem([{}], "array", items=file) == 'the argument "x[0].file" is missing'
    wrong = [{"file": "a", "name": 3}]
    assert problem(wrong, "array", items=file) == 'the argument "x[0].name" must be string or null'


def test_cut_text_says_so_with_the_full_size() -> None:
    assert cut_text("abc", 3) == ("abc", False)
    text, cut = cut_text("a" * 50 + "b" * 50, 30, total_bytes=12_345)
    assert cut
    assert text == "a" * 20 + "\n[... cut: 12345 bytes in all ...]\n" + "b" * 10
    assert cut_text("abcd\u2603\ud800", 3, end=True) == ("[... cut: 8 bytes in all ...]\nd\u2603\ud800", True)
    assert cut_text("abcd", 2)[0] == "ab\n[... cut: 4 bytes in all ...]\n"


def result(outcome: Outcome, stdout: str = "", stderr: str = "", **fields: Any) -> ExecutionResult:
    def output(text: str) -> Output:
        return Output(text.encode(), len(text.encode()))

    return ExecutionResult(outcome, Cause.POLICY, stdout=output(stdout), stderr=output(stderr), **fields)


@pytest.mark.parametrize(
    ("given", "text", "outcome"),
    [
        (result(Outcome.FINISHED, "42\n"), "42", ToolOutcome.OK),
        (result(Outcome.FINISHED, "", "a warning"), "[no output]", ToolOutcome.OK),
        (result(Outcome.NONZERO_EXIT, "1\n", "E: no\n", exit_code=1), "1\nE: no", ToolOutcome.PROGRAM_ERROR),
        (result(Outcome.NONZERO_EXIT, exit_code=3), "[exit code 3]", ToolOutcome.PROGRAM_ERROR),
        (result(Outcome.COMPILE_ERROR, message="no"), "[no]", ToolOutcome.PROGRAM_ERROR),
        (
            result(
                Outcome.COMPILE_ERROR,
                message="no",
                compilation=Compilation(Outcome.NONZERO_EXIT, 1, Output(b"main.d\n", 7), Output(b"x?\n", 3)),
            ),
            "main.d\nx?\n[no]",
            ToolOutcome.PROGRAM_ERROR,
        ),
        (result(Outcome.SIGNALED, signal=11), "[ended by signal 11]", ToolOutcome.PROGRAM_ERROR),
        (
            result(Outcome.TIME_LIMIT, "so far", message="more than 2 s"),
            "so far\n[more than 2 s]",
            ToolOutcome.TIME_LIMIT,
        ),
        (result(Outcome.CPU_LIMIT), "[cpu limit]", ToolOutcome.TIME_LIMIT),
        (result(Outcome.MEMORY_LIMIT), "[memory limit]", ToolOutcome.RESOURCE_LIMIT),
        (result(Outcome.PROCESS_LIMIT), "[process limit]", ToolOutcome.RESOURCE_LIMIT),
        (result(Outcome.OUTPUT_LIMIT), "[output limit]", ToolOutcome.RESOURCE_LIMIT),
    ],
)
def test_model_is_told_what_became_of_its_program(given: ExecutionResult, text: str, outcome: ToolOutcome) -> None:
    shown = describe(given, max_chars=100)
    assert (shown.text, shown.outcome, shown.truncated) == (text, outcome, False)


def test_every_outcome_of_the_executor_is_known() -> None:
    for outcome in Outcome:
        assert describe(result(outcome), max_chars=10).text


def test_long_output_and_long_errors_are_cut_visibly() -> None:
    shown = describe(result(Outcome.NONZERO_EXIT, "o" * 500, "e" * 500 + "Error: x"), max_chars=90)
    assert shown.truncated
    assert shown.total_bytes == 1008
    assert "[... cut: 500 bytes in all ...]" in shown.text
    assert shown.text.endswith("eError: x")
    assert len(shown.text) < 300


def test_displayed_values_are_shown_as_text_and_the_rest_is_counted() -> None:
    displays = (
        Display({"text/plain": b"   a\n0  1", "text/html": b"<table></table>"}),
        Display({"image/png": bytes(2000)}),
    )
    shown = describe(result(Outcome.FINISHED, "said\n", displays=displays), max_chars=100)
    assert shown.text == "said\n   a\n0  1\n[image/png, 2000 bytes, not shown]"
    assert (shown.truncated, shown.unshown) == (False, {"text/html": 15, "image/png": 2000})
    long = describe(result(Outcome.FINISHED, displays=(Display({"text/plain": b"x" * 500}),)), max_chars=30)
    assert (long.truncated, long.total_bytes) == (True, 500)
    assert "[... cut: 500 bytes in all ...]" in long.text


def test_exit_code_is_said_beside_standard_error_where_it_is_asked_for() -> None:
    failed = result(Outcome.NONZERO_EXIT, "1\n", "E: no\n", exit_code=2)
    assert describe(failed, max_chars=100, show_exit_code=True).text == "1\nE: no\n[exit code 2]"


def test_output_that_the_executor_cut_is_marked_even_when_it_is_short() -> None:
    kept = ExecutionResult(Outcome.FINISHED, Cause.POLICY, stdout=Output(b"abc", 9_000_000, truncated=True))
    shown = describe(kept, max_chars=100)
    assert (shown.text, shown.truncated) == ("abc\n[... cut: 9000000 bytes in all ...]", True)


def call(text: str, name: str = "echo") -> ToolCall:
    return ToolCall(name, {"text": text}, "")


async def test_calls_run_in_parallel_under_the_cap_and_are_answered_in_order() -> None:
    tool = ScriptedTool(lambda arguments: f"said {arguments['text']}")
    box = Toolbox([tool], max_parallel_calls=3)
    responses = await box.answer("t", [call(str(n)) for n in range(9)], run=9, time_limit_s=None)
    assert [response.text for response in responses] == [f"said {n}" for n in range(9)]
    assert tool.most_running == 3


async def test_every_wrong_call_is_answered_with_what_is_wrong() -> None:
    tool = ScriptedTool(lambda arguments: "ok")
    wrong: list[ToolCall | MalformedCall] = [
        MalformedCall("its JSON is cut off", ""),
        call("x", "python"),
        ToolCall("echo", {}, ""),
        call("x"),
        call("y"),
    ]
    responses = await Toolbox([tool]).answer("t", wrong, run=4, time_limit_s=None)
    assert [(response.outcome, response.text) for response in responses] == [
        (ToolOutcome.MALFORMED, "Error: the tool call is malformed: its JSON is cut off."),
        (ToolOutcome.UNKNOWN_TOOL, "Error: there is no tool named 'python'. Available tools: echo."),
        (ToolOutcome.BAD_ARGUMENTS, 'Error: the argument "text" is missing.'),
        (ToolOutcome.OK, "ok"),
        (ToolOutcome.OVER_BUDGET, "Error: not run, because no tool calls are left."),
    ]
    assert len(tool.calls) == 1


async def test_cancelled_turn_cancels_its_calls() -> None:
    started = asyncio.Event()

    class Slow(ScriptedTool):
        async def execute(self, *args: Any, **kwargs: Any) -> ToolResponse:
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                self.events.append("ended")
            raise AssertionError

    tool = Slow(lambda _: "")
    task = asyncio.ensure_future(Toolbox([tool]).answer("t", [call("a")], run=1, time_limit_s=None))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tool.events == ["ended"]


def test_tools_need_different_names() -> None:
    with pytest.raises(ConfigError, match="same name"):
        Toolbox([ScriptedTool(lambda _: ""), ScriptedTool(lambda _: "")])
