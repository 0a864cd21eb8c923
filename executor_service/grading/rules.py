"""The rules by which what happened becomes a verdict, and verdicts become a result. Pure.

The rule for causes: POLICY whenever the candidate could have caused it. A case is BROKEN_CASE (TASK) only where it
failed before it had asked the candidate for anything, or by what the test itself wanted to give it. ERROR (INFRA) only
where the sandbox failed or was taken away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from executor_service.grading.comparison import TOLERANCE, same_text, same_value
from executor_service.grading.model import CaseResult, Comparison, Tolerance, Verdict, VerifyResult
from executor_service.grading.values import Malformed, Tree, parse
from executor_service.model import Cause, Compilation, ExecutionResult, Outcome, Output

_SHOWN_BYTES = 16 << 10
"""A longer value is not returned as `actual`: rebuilding one costs the client time that the candidate can choose."""
_WAITS_BELOW = 0.1
"""Share of its time that a program computed: below, it was waiting."""
_LONG_INT = re.compile(rb'\["i", "[-+0-9a-fA-FxX_ ]{3572,}"')
"""The text of an int of more than 4,300 decimal digits, which Python refuses to print: nor is one returned."""


class Status(StrEnum):
    """Statuses that the checker gives a case or a test."""

    PASSED = "passed"
    """Nothing was raised."""
    WRONG = "wrong"
    """An assertion did not hold."""
    FAILED = "failed"
    """Something else was raised."""
    SKIPPED = "skipped"
    """The test did not want to be run."""
    FOREIGN = "foreign"
    """The test wanted to give the candidate what can't be given."""
    UNAVAILABLE = "unavailable"
    """The tool that it needs is not installed here."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict before it has a case."""

    verdict: Verdict
    cause: Cause
    message: str = ""
    actual: bytes | None = None
    """Text of the returned value."""
    score: float = 0.0
    """For PARTIAL: from 0 to 1."""


PASSED = Judgement(Verdict.PASSED, Cause.POLICY)
BROKEN_CODE = 3
"""Exit code of testlib: the program of the task has failed."""


def unanswered(execution: ExecutionResult) -> Judgement:
    """For an execution that did not come to an answer."""
    if execution.cause is Cause.INFRA:
        return Judgement(Verdict.ERROR, Cause.INFRA, execution.message)
    message = execution.message or f"The candidate ended with exit code {execution.exit_code} before it had answered."
    return Judgement(Verdict.FAILED, Cause.POLICY, message)


def judge_text(expected: bytes, actual: bytes, comparison: Comparison, tolerance: Tolerance = TOLERANCE) -> Judgement:
    """For a program that has printed `actual`."""
    if same_text(expected, actual, comparison, tolerance):
        return PASSED
    return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, "The output is not the expected one.")


def judge_program(execution: ExecutionResult) -> Judgement:
    """For a program that has run: PASSED where its output is all that is left to judge."""
    if execution.outcome is not Outcome.FINISHED:
        if execution.cause is Cause.INFRA:
            return Judgement(Verdict.ERROR, Cause.INFRA, execution.message)
        message = execution.message or f"The program ended with exit code {execution.exit_code}."
        return Judgement(Verdict.FAILED, Cause.POLICY, message)
    if execution.stdout.truncated:
        message = f"The program wrote {execution.stdout.total_bytes} bytes, more than are kept."
        return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, message)
    return PASSED


def judge_interaction(
    candidate: ExecutionResult,
    interactor: ExecutionResult,
    verdict: Judgement | None,
    *,
    candidate_first: bool,
    spoke: bool,
) -> Judgement:
    """For a candidate that has talked with an interactor. `verdict` is what that said by the way it ended; None: it
    failed. `candidate_first`: the candidate ended before the interactor did; `spoke`: it has printed anything.

    If an interactor fails once the candidate has spoken, that is the candidate's doing; only `BROKEN_CODE` says that it
    is not.
    """
    for each in (candidate, interactor):
        if each.cause is Cause.INFRA:
            return Judgement(Verdict.ERROR, Cause.INFRA, each.message)
    if verdict is not None and verdict.verdict in (Verdict.PASSED, Verdict.PARTIAL):
        return verdict if candidate.outcome is Outcome.FINISHED else _not_finished(candidate)
    said = (interactor.stderr.text.strip() or interactor.message)[:1000]
    if interactor.outcome is Outcome.NONZERO_EXIT and interactor.exit_code == BROKEN_CODE:
        return Judgement(Verdict.BROKEN_CASE, Cause.TASK, f"The interactor says that it failed itself: {said}")
    if candidate_first and candidate.outcome is not Outcome.FINISHED:
        return _not_finished(candidate)
    if not (candidate_first or spoke):
        how = f"({interactor.outcome}, exit code {interactor.exit_code})"
        problem = f"The interactor ended before the candidate had said anything {how}: {said}"
        return Judgement(Verdict.BROKEN_CASE, Cause.TASK, problem)
    if verdict is not None:
        return verdict
    how = f"The interactor failed on what the candidate said ({interactor.outcome})"
    return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, f"{how}: {said}" if said else f"{how}.")


def _not_finished(candidate: ExecutionResult) -> Judgement:
    """For one that failed while it talked with an interactor."""
    found = judge_program(candidate)
    waited = candidate.cpu_time_s < candidate.wall_time_s * _WAITS_BELOW
    if candidate.outcome is Outcome.TIME_LIMIT and waited:
        hint = "It waited and did not compute: does it flush its output, and read no more than it is told?"
        return replace(found, message=f"{found.message} {hint}")
    return found


def judge_value(
    text: bytes, expected: Tree, comparison: Comparison, *, tuples_are_lists: bool, tolerance: Tolerance = TOLERANCE
) -> Judgement:
    """For a function that has returned. `text` is what its process sent."""
    try:
        # [value, changed arguments, printed text]
        match parse(text):
            case ["l", [actual, *_]]:
                pass
            case _:
                raise Malformed("the answer has no value")
    except Malformed as error:
        return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, f"The function returned no plain data: {error}.")
    shown = short(json.dumps(actual).encode())
    if same_value(expected, actual, comparison, tuples_are_lists=tuples_are_lists, tolerance=tolerance):
        return Judgement(Verdict.PASSED, Cause.POLICY, actual=shown)
    return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, "The value is not the expected one.", shown)


def short(text: bytes) -> bytes | None:
    """The text of a value where it can be returned as `actual`."""
    return None if len(text) > _SHOWN_BYTES or _LONG_INT.search(text) else text


def judge_check(status: str, message: str, *, asked: int, gone: str, must_ask: bool = False) -> Judgement:
    """For what the checker said. `asked`: how often it had asked the candidate; `gone`: why the candidate could not
    answer, where it could not; `must_ask`: a case that asks for nothing says nothing."""
    if gone:
        return Judgement(Verdict.FAILED, Cause.POLICY, gone)
    if status == Status.PASSED:
        if must_ask and not asked:
            said = "The case passed without asking the candidate for anything: any candidate would."
            return Judgement(Verdict.BROKEN_CASE, Cause.TASK, said)
        return PASSED
    if status == Status.UNAVAILABLE:
        return Judgement(Verdict.ERROR, Cause.INFRA, message)
    if status == Status.FOREIGN:
        return Judgement(
            Verdict.BROKEN_CASE, Cause.TASK, f"{message}: only plain data and functions can be given to it."
        )
    if not asked:
        return Judgement(Verdict.BROKEN_CASE, Cause.TASK, f"The case failed without the candidate: {message}")
    verdict = Verdict.WRONG_ANSWER if status == Status.WRONG else Verdict.FAILED
    return Judgement(verdict, Cause.POLICY, message)


def aggregate(cases: Sequence[CaseResult]) -> VerifyResult:
    """The result of all. What the compiler said is in it once, and without its output in each case."""
    causes = {case.cause for case in cases}
    cause = next((each for each in (Cause.INFRA, Cause.TASK) if each in causes), Cause.POLICY)
    return VerifyResult(tuple(map(without_compiler_output, cases)), cause, _compilation(cases))


def _compilation(cases: Sequence[CaseResult]) -> Compilation | None:
    """Compilation of the cases' one source: of theirs the first that failed, else the one that was not cached."""
    found = [case.execution.compilation for case in cases if case.execution and case.execution.compilation]
    return min(found, key=lambda each: (each.outcome is Outcome.FINISHED, each.cached), default=None)


def without_compiler_output(case: CaseResult) -> CaseResult:
    """The result of a case: the compiler has said the same of all."""
    if case.execution is None or case.execution.compilation is None:
        return case
    said = case.execution.compilation
    said = replace(said, stdout=_left_out(said.stdout), stderr=_left_out(said.stderr))
    return replace(case, execution=replace(case.execution, compilation=said))


def _left_out(output: Output) -> Output:
    return Output(b"", output.total_bytes, truncated=output.total_bytes > 0)


class OutputBudget:
    """Bounds what all results of a request hold together: each keeps its output while there is room."""

    def __init__(self, total_bytes: int) -> None:
        self._left = total_bytes

    def cut(self, results: Iterable[CaseResult]) -> list[CaseResult]:
        return [self._cut(result) for result in results]

    def cut_execution(self, execution: ExecutionResult) -> ExecutionResult:
        """With as much of its output as there is room for."""
        stdout, stderr = self._output(execution.stdout), self._output(execution.stderr)
        return replace(execution, stdout=stdout, stderr=stderr)

    def _cut(self, result: CaseResult) -> CaseResult:
        execution = self.cut_execution(result.execution) if result.execution is not None else None
        actual = result.actual
        if actual is not None:
            actual = actual if len(actual) <= self._left else None
            self._left -= len(actual or b"")
        return replace(result, execution=execution, actual=actual)

    def _output(self, output: Output) -> Output:
        data = output.data[: self._left]
        self._left -= len(data)
        return Output(data, output.total_bytes, output.truncated or len(data) < len(output.data))
