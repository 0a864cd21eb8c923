"""Checkers: programs of a task that decide where several outputs are right. Pure.

A checker reads what the candidate printed, so the candidate can make it fail. Invariant: such a failure is the
candidate's wrong answer wherever the checker does not fail on the expected output too; only then is the case broken.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from executor_service.grading.model import StdioCase, Verdict
from executor_service.grading.rules import PASSED, Finding
from executor_service.model import Cause, ExecutionResult, Limits, Outcome, RunRequest
from executor_service.sandbox.limits import PAGE, disk_use
from executor_service.v1 import executor_pb2 as pb
from executor_service.validation import LimitPolicy, validate
from fairbox.errors import FieldError, FieldErrors

INPUT, OUTPUT, ANSWER = "input", "output", "answer"
"""Names of the files, in the order in which testlib's checkers take them."""
SOURCE_FILE = "checker.py"
_NAME = re.compile(r"[^\W\d]\w*")
_WRONG_CODES = (1, 2, 4, 8)
"""testlib: wrong answer, presentation error, too much output, unexpected end of file."""
_FAILED_CODE = 3
_CALLS_FUNCTION = f"""\
import sys, traceback

def main(name, *paths):
    with open({SOURCE_FILE!r}, encoding="utf-8") as file:
        source = file.read()
    texts = []
    for path in paths:
        with open(path, "rb") as file:
            texts.append(file.read().decode("utf-8", "replace"))
    names = {{"__name__": "checker"}}
    exec(compile(source, {SOURCE_FILE!r}, "exec"), names)
    verdict = names[name](*texts)
    if verdict not in (True, False):
        raise TypeError(f"{{name}} returned {{verdict!r}}, must return True or False")
    return 0 if verdict else 1

try:
    code = main(*sys.argv[1:])
except BaseException:  # an exit is no verdict either
    traceback.print_exc()
    code = {_FAILED_CODE}
sys.exit(code)
"""
"""An uncaught exception would end an interpreter with the exit code that says wrong."""


def validate_checker(
    found: list[FieldError],
    request: pb.VerifyCodeRequest,
    cases: Sequence[object],
    limits: Limits,
    *,
    installed: Collection[str],
    policy: LimitPolicy,
) -> RunRequest | None:
    """The checker of a request, but for the three files of a case; None with what is wrong in `found`."""
    checker, before = request.checker, len(found)
    taken = (INPUT, OUTPUT, ANSWER, *((SOURCE_FILE,) if checker.entry_point else ()))
    for index, file in enumerate(checker.files):
        if file.path.partition("/")[0] in taken:
            problem = f"is {file.path!r}, which is the checker's own already"
            found.append(FieldError(f"checker.files[{index}].path", problem))
    if len(found) > before:
        return None
    files = [*checker.files, *(pb.InputFile(path=name) for name in (INPUT, OUTPUT, ANSWER))]
    code, args = checker.code, [INPUT, OUTPUT, ANSWER]
    if checker.entry_point:
        if checker.language not in ("", "python"):
            found.append(FieldError("checker.entry_point", f"is set, must not be for {checker.language}"))
        if not _NAME.fullmatch(checker.entry_point):
            found.append(FieldError("checker.entry_point", f"is {checker.entry_point!r}, must be a function's name"))
        if not code:
            found.append(FieldError("checker.code", "is empty, must be the source of a checker"))
        files.append(pb.InputFile(path=SOURCE_FILE, content=code.encode()))
        code, args = _CALLS_FUNCTION, [checker.entry_point, INPUT, ANSWER, OUTPUT]
    execution = pb.ExecuteCodeRequest(
        code=code,
        language=checker.language,
        args=args,
        files=files,
        limits=checker.limits,
        tenant=request.tenant,
    )
    try:
        program = validate(execution, installed=installed, policy=policy)
    except FieldErrors as errors:
        found += [FieldError(f"checker.{error.field}", error.problem) for error in errors.errors]
        return None
    _check_room(found, program, cases, limits)
    return None if len(found) > before else program


def _check_room(found: list[FieldError], program: RunRequest, cases: Sequence[object], limits: Limits) -> None:
    """Whether the largest case fits beside the checker's own files, so that no output can keep it from running."""
    sizes = [len(case.stdin) + len(case.expected_stdout) for case in cases if isinstance(case, StdioCase)]
    needed = disk_use(program.files) + len(program.code) + max(sizes, default=0) + limits.output_bytes + 4 * PAGE
    if needed > program.limits.disk_bytes:
        problem = f"is {program.limits.disk_bytes}, but its files and those of a case can need {needed}"
        found.append(FieldError("checker.limits.disk_bytes", problem))


def check_request(checker: RunRequest, case: StdioCase, output: bytes) -> RunRequest:
    """The run that checks `output`."""
    contents = {INPUT: case.stdin, OUTPUT: output, ANSWER: case.expected_stdout}
    files = [replace(file, content=contents.get(file.path, file.content)) for file in checker.files]
    return replace(checker, files=tuple(files))


def judge_check_run(check: ExecutionResult) -> Finding | None:
    """What a run of the checker says; None: it failed."""
    if check.cause is Cause.INFRA:
        return Finding(Verdict.ERROR, Cause.INFRA, f"The checker could not be run: {check.message}")
    if check.outcome is Outcome.FINISHED:
        return PASSED
    if check.outcome is Outcome.NONZERO_EXIT and check.exit_code in _WRONG_CODES:
        said = (check.stderr.text or check.stdout.text).strip()[:1000]
        return Finding(Verdict.WRONG_ANSWER, Cause.POLICY, said or "The checker does not accept the output.")
    return None


def judge_control(check: ExecutionResult, control: ExecutionResult) -> Finding:
    """For a checker that failed: `check` on the candidate's output, `control` on the expected one."""
    verdict = judge_check_run(control)
    said = (check.stderr.text.strip().splitlines() or [check.message])[-1][:1000]
    how = f"The checker failed ({check.outcome}, exit code {check.exit_code}): {said}"
    if verdict is None:
        return Finding(Verdict.BROKEN_CASE, Cause.TASK, f"{how} It does so for the expected output too.")
    if verdict.cause is Cause.INFRA:
        return verdict
    return Finding(Verdict.WRONG_ANSWER, Cause.POLICY, f"{how} It does not for the expected output.")
