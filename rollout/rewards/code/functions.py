"""The reward functions: each finds the program in the answer, the cases in the ground truth, and grades.

Arguments that most of them take are in `TestArguments` and `SampleArguments`.

`Completion`: what the beginning defines beside the function (helpers, imports) is the task's: the test uses its own
copy. A candidate that defines `poly` or `encode_shift` anew does not decide what `assert poly(xs, candidate(xs)) == 0`
means.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

from executor_service import AssertCase, Case, Comparison, Tolerance, VerifyResult
from rollout.rewards.base import Reward, RewardServices, Sample
from rollout.rewards.code.extract import extract_code
from rollout.rewards.code.grading import Grading, Unusable, grade, reward_of, with_testlib
from rollout.rewards.code.source import IMPORTS, after_future, defines, entry_of, parsed
from rollout.rewards.code.truth import asserts_of, calls_of, document_of, programs_of, pytests_of, unusable
from rollout.rewards.registry import reward

_MARGIN = re.compile(r"\n(?=[^\s#)\]}])")
"""End of a function's completion: something starts at the margin again."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A problem."""

    prompt: str
    """Ends with the function's signature and docstring."""
    test: str
    """Defines `check(candidate)`."""
    entry_point: str

    def program(self, answer: str) -> str:
        """The candidate: `answer` if it has the function, with what the prompt defines beside it; else the prompt
        with `answer` as the function's body, as far as it is one."""
        if defines(answer, self.entry_point):
            return after_future(self._beside(), answer)
        body = _MARGIN.split("\n" + answer.strip("\n"), maxsplit=1)
        if not body[0].strip():  # it starts at the margin itself: a body that was not indented
            body = ["\n" + "\n".join(f"    {line}" if line.strip() else "" for line in answer.strip("\n").split("\n"))]
        return self.prompt.rstrip("\n") + body[0] + "\n"

    @property
    def setup_code(self) -> str:
        """Code that the test needs: the task's own helpers, and the test."""
        return f"{self._beside()}\n{self.test}\n"

    @property
    def case(self) -> AssertCase:
        # By name: a function may be called as a built-in one is.
        source = f"from solution import {self.entry_point} as _candidate\ncheck(_candidate)"
        return AssertCase(source, self.entry_point)

    def _beside(self) -> str:
        """Source of what the prompt defines beside the function."""
        tree = parsed(self.prompt.rstrip("\n") + "\n    pass\n")
        if tree is None:
            raise unusable(f"the prompt of {self.entry_point} is no beginning of a program")
        rest = [node for node in tree.body if not (isinstance(node, _FUNCTIONS) and node.name == self.entry_point)]
        return ast.unparse(ast.Module(rest, []))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def completion_of(document: Any) -> Completion:
    """Reads a mapping with `prompt`, `test` and `entry_point`. Raises NotScored (TASK) if one is missing."""
    if not isinstance(document, Mapping):
        raise unusable("must be an object with prompt, test and entry_point")
    texts = []
    for name in ("prompt", "test", "entry_point"):
        value = document.get(name)
        if not isinstance(value, str) or not value.strip():
            raise unusable(f"{name} is {value!r:.40}, must be a text that is not empty")
        texts.append(value)
    if not texts[2].isidentifier():
        raise unusable(f"entry_point is {texts[2]!r}, must be the name of a function")
    return Completion(*texts)


class LimitArguments(TypedDict, total=False):
    """Limits of each case, and the place of the program, as in `Grading`."""

    wall_time_s: float
    memory_mb: int
    output_mb: int
    processes: int
    whole_text: bool


class TestArguments(LimitArguments, total=False):
    """Limits, and the worth of several cases, as in `Grading`; all flags are false by default."""

    continuous: bool
    stop_on_failure: bool
    case_parts: bool


class SampleArguments(TestArguments, total=False):
    """Limits, worth, and choice of the cases to run, as in `Grading`; 0, the default of both: all. `time_factor` makes
    the problem's own time limit count; `checker_time_s` bounds the task's checker, if there is one."""

    max_cases: int
    seed: int
    time_factor: float
    checker_time_s: float


Mode = Literal["exact", "whitespace", "float"]
_COLUMNS = ("input_output", "test_cases", "tests")


@reward("code_stdio")
async def code_stdio(
    sample: Sample,
    services: RewardServices,
    *,
    language: str = "python",
    comparison: Mode = "whitespace",
    absolute_tolerance: float = 1e-6,
    relative_tolerance: float = 1e-6,
    testlib: str = "",
    **how: Unpack[SampleArguments],
) -> Reward:
    """A program that reads standard input and writes standard output. A `checker` in the ground truth decides, in place
    of `comparison`; an `interactor` talks with the program. `testlib` is the path of testlib.h, for those of them that
    include it and bring none: empty if the executor's image has it."""
    programs = programs_of(document_of(sample, *_COLUMNS))
    more = _compared(comparison, absolute_tolerance, relative_tolerance)
    judges = {"checker": programs.checker, "interactor": programs.interactor}
    if any(judges.values()):
        more = {name: with_testlib(judge, testlib) for name, judge in judges.items() if judge is not None}
    return await _graded(sample, services, programs.cases, how, language, time_limit_s=programs.time_limit_s, **more)


@reward("code_function")
async def code_function(
    sample: Sample,
    services: RewardServices,
    *,
    fn_name: str = "",
    comparison: Mode = "exact",
    absolute_tolerance: float = 1e-6,
    relative_tolerance: float = 1e-6,
    imports: bool = True,
    **how: Unpack[SampleArguments],
) -> Reward:
    """A function, or a method of `class Solution`, whose values are compared. `fn_name`: used if the ground truth
    has none. `imports`: puts the imports that LeetCode's solutions take for granted ahead of them."""
    calls = calls_of(document_of(sample, *_COLUMNS), name=fn_name or str(sample.row.get("fn_name") or ""))
    more = _compared(comparison, absolute_tolerance, relative_tolerance)
    extracted = extract_code(sample.text, whole=how.get("whole_text", False))
    more |= {"entry_point": entry_of(extracted.code, calls.name)}
    if imports:
        more["program"] = partial(after_future, IMPORTS)
    return await _graded(sample, services, calls.cases, how, time_limit_s=calls.time_limit_s, **more)


@reward("code_asserts")
async def code_asserts(
    sample: Sample,
    services: RewardServices,
    **how: Unpack[SampleArguments],
) -> Reward:
    """Functions, about which the assertions of the ground truth have to hold; each is a case of its own."""
    asserts = asserts_of(document_of(sample, "assert_case", "test_list"), sample.row)
    return await _graded(sample, services, asserts.cases, how, setup_code=asserts.setup_code)


@reward("humaneval")
async def humaneval(
    sample: Sample,
    services: RewardServices,
    **given: Unpack[LimitArguments],
) -> Reward:
    """The body of a function whose beginning was given, or the whole program; `whole_text` is true unless given. All or
    nothing: the test is one case.

    The ground truth is an object with `prompt`, `test` and `entry_point`; the row's columns stand in for it.
    """
    has_columns = all(isinstance(sample.row.get(name), str) for name in ("prompt", "test", "entry_point"))
    problem = completion_of(sample.row if has_columns and not sample.ground_truth else document_of(sample))
    how: LimitArguments = {"whole_text": True, **given}
    return await _graded(sample, services, [problem.case], how, program=problem.program, setup_code=problem.setup_code)


@reward("code_pytest")
async def code_pytest(
    sample: Sample,
    services: RewardServices,
    **how: Unpack[TestArguments],
) -> Reward:
    """A module that tests import as `solution`. With `continuous` the share of the tests that pass."""
    tests = pytests_of(document_of(sample, "tests"))
    return await _graded(sample, services, tests.cases, how, test_files=tests.test_files, files=tests.files)


@reward("code_tests")
async def code_tests(
    sample: Sample,
    services: RewardServices,
    *,
    language: str = "python",
    testlib: str = "",
    **how: Unpack[SampleArguments],
) -> Reward:
    """Programs for data of several kinds: `humaneval` if the ground truth has a `test`, `code_function` if it has
    `fn_name`, `code_asserts` if it has `assert_case`, else `code_stdio`, with its `language` and `testlib`."""
    document = document_of(sample, *_COLUMNS, "assert_case", "test_list")
    chosen: Any = None
    if isinstance(document, Mapping):
        kinds = {"test": humaneval, "assert_case": code_asserts, "fn_name": code_function}
        chosen = next((function for key, function in kinds.items() if document.get(key)), None)
    elif isinstance(document, list) and document and isinstance(document[0], str):
        chosen = code_asserts
    if chosen is None:
        return await code_stdio(sample, services, language=language, testlib=testlib, **how)
    if language != "python":
        raise unusable(f"calls Python, but the language is {language}")
    found: Reward = await chosen(sample, services, **how)
    return found


async def _graded(
    sample: Sample,
    services: RewardServices,
    cases: Sequence[Case],
    given: Mapping[str, Any],
    language: str = "python",
    *,
    program: Callable[[str], str] = str,
    time_limit_s: float = 0.0,
    **more: Any,
) -> Reward:
    """Grades an answer. `program` makes the candidate's source from the answer's."""
    how = Grading(**given).within(time_limit_s)
    extracted = extract_code(sample.text, language, whole=how.whole_text)
    result: VerifyResult | None = None
    if extracted.code:
        with contextlib.suppress(Unusable):
            result = await grade(services, program(extracted.code), cases, how, language=language, **more)
    return reward_of(extracted, result, how)


def _compared(mode: Mode, absolute: float, relative: float) -> dict[str, Any]:
    """Arguments of `ExecutorClient.verify`."""
    comparison = Comparison(mode.upper())
    return {"comparison": comparison, "tolerance": Tolerance(absolute, relative) if mode == "float" else None}
