"""The reward functions: each finds the program in the answer, the cases in the ground truth, and grades.

Arguments that all of them take: `continuous`, `stop_on_failure`, `max_cases`, `seed` and `case_parts` as in `Grading`;
`wall_time_s`, `memory_mb` (0: the server's default) and `processes` limit each case; `whole_text`: an answer without a
fence is a program itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from executor_service import Case, Comparison, Limits, Tolerance
from rollout.rewards.base import Reward, RewardServices, Sample
from rollout.rewards.code.completion import completion_of
from rollout.rewards.code.extract import extract_code
from rollout.rewards.code.grading import Grading, Unusable, grade, reward_of
from rollout.rewards.code.source import IMPORTS, after_future, entry_of
from rollout.rewards.code.truth import asserts_of, calls_of, document_of, programs_of, pytests_of
from rollout.rewards.registry import reward

__all__ = ["code_asserts", "code_function", "code_pytest", "code_stdio", "code_tests", "humaneval"]

Mode = Literal["exact", "whitespace", "float"]
_COLUMNS = ("input_output", "test_cases", "tests")
_WALL_TIME_S = 10.0


@reward("code_stdio")
async def code_stdio(
    sample: Sample,
    services: RewardServices,
    *,
    language: str = "python",
    comparison: Mode = "whitespace",
    absolute_tolerance: float = 1e-6,
    relative_tolerance: float = 1e-6,
    continuous: bool = False,
    stop_on_failure: bool = False,
    max_cases: int = 0,
    seed: int = 0,
    case_parts: bool = False,
    wall_time_s: float = _WALL_TIME_S,
    memory_mb: int = 0,
    processes: int = 0,
    whole_text: bool = False,
) -> Reward:
    """A program that reads standard input and writes standard output. Where the ground truth has a `checker`, that
    decides, in place of `comparison`."""
    programs = programs_of(document_of(sample, *_COLUMNS))
    how = Grading(continuous, stop_on_failure, max_cases, seed, case_parts, _limits(wall_time_s, memory_mb, processes))
    more = _compared(comparison, absolute_tolerance, relative_tolerance)
    if programs.checker:
        more = {"checker": programs.checker}
    return await _graded(sample, services, programs.cases, how, whole_text, language, **more)


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
    continuous: bool = False,
    stop_on_failure: bool = False,
    max_cases: int = 0,
    seed: int = 0,
    case_parts: bool = False,
    wall_time_s: float = _WALL_TIME_S,
    memory_mb: int = 0,
    processes: int = 0,
    whole_text: bool = False,
) -> Reward:
    """A function, or a method of `class Solution`, whose values are compared. `fn_name`: where the ground truth does
    not say. `imports`: what solutions of LeetCode take for granted is imported ahead of them."""
    calls = calls_of(document_of(sample, *_COLUMNS), name=fn_name or str(sample.row.get("fn_name") or ""))
    how = Grading(continuous, stop_on_failure, max_cases, seed, case_parts, _limits(wall_time_s, memory_mb, processes))
    more = _compared(comparison, absolute_tolerance, relative_tolerance)
    extracted = extract_code(sample.text, whole=whole_text)
    more |= {"entry_point": entry_of(extracted.code, calls.name), "before": IMPORTS if imports else ""}
    return await _graded(sample, services, calls.cases, how, whole_text, **more)


@reward("code_asserts")
async def code_asserts(
    sample: Sample,
    services: RewardServices,
    *,
    continuous: bool = False,
    stop_on_failure: bool = False,
    max_cases: int = 0,
    seed: int = 0,
    case_parts: bool = False,
    wall_time_s: float = _WALL_TIME_S,
    memory_mb: int = 0,
    processes: int = 0,
    whole_text: bool = False,
) -> Reward:
    """Functions, about which the assertions of the ground truth have to hold; each is a case of its own."""
    asserts = asserts_of(document_of(sample, "assert_case", "test_list"), sample.row)
    how = Grading(continuous, stop_on_failure, max_cases, seed, case_parts, _limits(wall_time_s, memory_mb, processes))
    return await _graded(sample, services, asserts.cases, how, whole_text, setup_code=asserts.setup_code)


@reward("humaneval")
async def humaneval(
    sample: Sample,
    services: RewardServices,
    *,
    wall_time_s: float = _WALL_TIME_S,
    memory_mb: int = 0,
    processes: int = 0,
    whole_text: bool = True,
) -> Reward:
    """The body of a function whose beginning was given, or the whole program. All or nothing: the test is one case.

    The ground truth is an object with `prompt`, `test` and `entry_point`; the row's columns stand in for it.
    """
    has_columns = all(isinstance(sample.row.get(name), str) for name in ("prompt", "test", "entry_point"))
    problem = completion_of(sample.row if has_columns and not sample.ground_truth else document_of(sample))
    how = Grading(limits=_limits(wall_time_s, memory_mb, processes))
    extracted = extract_code(sample.text, whole=whole_text)
    if not extracted:
        return reward_of(extracted, None, how)
    try:
        program = problem.program(extracted.code)
        result = await grade(services, program, [problem.case], how, setup_code=problem.setup_code)
    except Unusable:
        return reward_of(extracted, None, how)
    return reward_of(extracted, result, how)


@reward("code_pytest")
async def code_pytest(
    sample: Sample,
    services: RewardServices,
    *,
    continuous: bool = False,
    stop_on_failure: bool = False,
    case_parts: bool = False,
    wall_time_s: float = _WALL_TIME_S,
    memory_mb: int = 0,
    processes: int = 0,
    whole_text: bool = False,
) -> Reward:
    """A module that tests import as `solution`. With `continuous` the share of the tests that pass."""
    tests = pytests_of(document_of(sample, "tests"))
    how = Grading(continuous, stop_on_failure, case_parts=case_parts, limits=_limits(wall_time_s, memory_mb, processes))
    return await _graded(sample, services, tests.cases, how, whole_text, test_files=tests.test_files, files=tests.files)


@reward("code_tests")
async def code_tests(
    sample: Sample,
    services: RewardServices,
    *,
    continuous: bool = False,
    stop_on_failure: bool = False,
    max_cases: int = 0,
    seed: int = 0,
    case_parts: bool = False,
    wall_time_s: float = _WALL_TIME_S,
    memory_mb: int = 0,
    processes: int = 0,
    whole_text: bool = False,
) -> Reward:
    """For data of several kinds: `code_function` where the ground truth has `fn_name`, `code_asserts` where it has
    `assert_case`, else `code_stdio`."""
    document = document_of(sample, *_COLUMNS, "assert_case", "test_list")
    chosen: Any = code_stdio
    if isinstance(document, Mapping):
        chosen = code_asserts if document.get("assert_case") else code_function if document.get("fn_name") else chosen
    elif isinstance(document, list) and document and isinstance(document[0], str):
        chosen = code_asserts
    found: Reward = await chosen(
        sample,
        services,
        continuous=continuous,
        stop_on_failure=stop_on_failure,
        max_cases=max_cases,
        seed=seed,
        case_parts=case_parts,
        wall_time_s=wall_time_s,
        memory_mb=memory_mb,
        processes=processes,
        whole_text=whole_text,
    )
    return found


async def _graded(
    sample: Sample,
    services: RewardServices,
    cases: Sequence[Case],
    how: Grading,
    whole_text: bool,
    language: str = "python",
    *,
    before: str = "",
    **more: Any,
) -> Reward:
    extracted = extract_code(sample.text, language, whole=whole_text)
    if not extracted:
        return reward_of(extracted, None, how)
    code = after_future(before, extracted.code) if before else extracted.code
    try:
        result = await grade(services, code, cases, how, language=language, **more)
    except Unusable:
        return reward_of(extracted, None, how)
    return reward_of(extracted, result, how)


def _limits(wall_time_s: float, memory_mb: int, processes: int) -> Limits:
    return Limits(wall_time_s=wall_time_s, memory_bytes=memory_mb << 20, processes=processes)


def _compared(mode: Mode, absolute: float, relative: float) -> dict[str, Any]:
    """Arguments of `ExecutorClient.verify`."""
    comparison = Comparison(mode.upper())
    return {"comparison": comparison, "tolerance": Tolerance(absolute, relative) if mode == "float" else None}
