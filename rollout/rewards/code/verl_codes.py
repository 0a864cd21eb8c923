"""verl's form of a code reward: a score and what became of each case, with its result codes.

For callers of `verl.utils.reward_score.sandbox_fusion.compute_score` and `prime_code.compute_score`: the same ground
truths, the same pair (score, metadata), the same codes. What differs, and is meant to: outputs may differ in white
space at the end of lines; a function's value is compared as a value and not as text; a failure of the executor or of
the test cases raises NotScored, where verl's functions give 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from executor_service import Case, CaseResult, Limits, Outcome, Verdict
from rollout.rewards.base import RewardServices
from rollout.rewards.code.extract import extract_code
from rollout.rewards.code.grading import Grading, Unusable, grade
from rollout.rewards.code.source import IMPORTS, after_future, entry_of
from rollout.rewards.code.truth import asserts_of, calls_of, programs_of, unusable

__all__ = ["VerlCode", "verl_code", "verl_score"]

COUNTED = 10
"""Cases that a continuous score is made of."""
NO_CODE = "Invalid completion (missing code block)"


class VerlCode(IntEnum):
    """What a case is that is neither right (True) nor wrong (False)."""

    API_ERROR = -1
    """It could not be run."""
    RUNTIME_ERROR = -2
    """The program failed, or met a limit other than time."""
    TIMEOUT = -3
    """It met a limit of time."""
    COMPILE_ERROR = -4
    """It does not compile."""


_STATUS = {
    True: "success",
    False: "wrong_answer",
    VerlCode.API_ERROR: "sandbox_error",
    VerlCode.RUNTIME_ERROR: "runtime_error",
    VerlCode.TIMEOUT: "timeout",
    VerlCode.COMPILE_ERROR: "compile_error",
}


def verl_code(case: CaseResult) -> bool | VerlCode:
    """True, False or a code."""
    if case.verdict is Verdict.PASSED:
        return True
    if case.verdict is Verdict.WRONG_ANSWER:
        return False
    if case.verdict is not Verdict.FAILED:
        return VerlCode.API_ERROR
    match case.execution.outcome if case.execution else None:
        case Outcome.COMPILE_ERROR:
            return VerlCode.COMPILE_ERROR
        case Outcome.TIME_LIMIT | Outcome.CPU_LIMIT:
            return VerlCode.TIMEOUT
    return VerlCode.RUNTIME_ERROR


async def verl_score(
    services: RewardServices,
    completion: str,
    test_cases: str | Mapping[str, Any],
    *,
    continuous: bool = False,
    timeout: float = 10.0,
    memory_limit_mb: int = 0,
    language: str = "python",
    whole_text: bool = False,
) -> tuple[float, list[dict[str, Any]]]:
    """Share of the cases that pass, and a mapping for each case with verl's keys; `result` is its code.

    `test_cases`: `inputs` and `outputs`, with `fn_name` for calls; or `assert_case`. With `continuous` the first 10
    count, and no others are run. `timeout`: seconds for each case. `whole_text`, as prime_code has it: a completion
    without a fence is code. Raises NotScored.
    """
    extracted = extract_code(completion, language, whole=whole_text)
    if not extracted:
        return 0.0, [{"error": NO_CODE}]
    document = _document(test_cases)
    code, cases, more = _prepared(extracted.code, document)
    cases = cases[:COUNTED] if continuous else cases
    limits = Limits(wall_time_s=timeout, compile_time_s=timeout, memory_bytes=memory_limit_mb << 20)
    try:
        result = await grade(services, code, cases, Grading(limits=limits), language=language, **more)
    except Unusable as problem:
        return 0.0, [{"error": str(problem)}]
    inputs = document.get("inputs") or [""] * len(cases)
    outputs = document.get("outputs") or [None] * len(cases)
    found = [_metadata(i, case, inputs[i], outputs[i]) for i, case in enumerate(result.cases)]
    return result.passed / len(result.cases), found


def _document(test_cases: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(test_cases, str):
        try:
            test_cases = json.loads(test_cases)
        except (ValueError, RecursionError):
            raise unusable("is no JSON") from None
    if not isinstance(test_cases, Mapping):
        raise unusable(f"is {type(test_cases).__name__}, must be an object with inputs and outputs")
    return test_cases


def _prepared(code: str, document: Mapping[str, Any]) -> tuple[str, Sequence[Case], dict[str, Any]]:
    """The candidate, its cases, and what else `verify` is told."""
    if document.get("assert_case"):
        asserts = asserts_of(document, {})
        return code, asserts.cases, {"setup_code": asserts.setup_code}
    if document.get("fn_name"):
        calls = calls_of(document)
        return after_future(IMPORTS, code), calls.cases, {"entry_point": entry_of(code, calls.name)}
    programs = programs_of(document)
    return code, programs.cases, {"checker": programs.checker}


def _metadata(index: int, case: CaseResult, given: Any, wanted: Any) -> dict[str, Any]:
    code = verl_code(case)
    execution = case.execution
    compilation = execution.compilation if execution else None
    return {
        "case_index": index,
        "input": str(given),
        "expected_output": None if wanted is None else str(wanted),
        "result": code,
        "status": _STATUS[code],
        "api_request_error": None,
        "api_response": None,
        "stdout": execution.stdout.text if execution else None,
        "stderr": execution.stderr.text if execution else None,
        "exit_code": execution.exit_code if execution else None,
        "duration": execution.wall_time_s if execution else None,
        "compile_duration": compilation.wall_time_s if compilation else None,
        "compile_stderr": compilation.stderr.text if compilation else None,
        "api_status": "Success" if execution and execution.ok else "Failed",
        "compile_status": None if compilation is None else "Finished",
        "run_status": "TimeLimitExceeded" if code is VerlCode.TIMEOUT else "Finished",
        "message": case.message,
    }
