"""Checkers: programs of a task that decide where several outputs are right. Pure.

A checker reads what the candidate printed, so the candidate can make it fail. Invariant: such a failure is the
candidate's wrong answer wherever the checker does not fail on the expected output too; only then is the case broken.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace

from executor_service.grading.model import StdioCase, Verdict
from executor_service.grading.rules import PASSED, Judgement
from executor_service.model import Cause, ExecutionResult, Limits, Outcome, RunRequest
from executor_service.sandbox.limits import PAGE, disk_use
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import MAX_CODE, LimitPolicy, validate
from fairbox.errors import FieldError, FieldErrors, shown

INPUT, OUTPUT, ANSWER = "input", "output", "answer"
"""Names of the files, in the order in which testlib's checkers take them."""
SOURCE_FILE = "checker.py"
_NAME = re.compile(r"[^\W\d]\w*")
_WRONG_CODES = (1, 2, 4, 8)
"""testlib: wrong answer, presentation error, too much output, unexpected end of file."""
_FAILED_CODE = 3
_VERDICT = ".verdict"
"""File that a checker in Python writes its verdict to."""
_VERDICT_BYTES = 64
_RUNS_CHECKER = f"""\
def main():
    import runpy, sys, traceback

    token, name, paths = sys.stdin.read(), sys.argv[1], sys.argv[2:]
    sys.argv[:] = [{SOURCE_FILE!r}, *paths]

    def judged():
        names = runpy.run_path({SOURCE_FILE!r}, run_name="checker")
        texts = []
        for path in paths:
            with open(path, "rb") as file:
                texts.append(file.read().decode("utf-8", "replace"))
        verdict = names[name](*texts)
        if verdict not in (True, False):
            raise TypeError(f"{{name}} returned {{verdict!r}}, must return True or False")
        return 0 if verdict else 1

    def ended():
        try:
            runpy.run_path({SOURCE_FILE!r}, run_name="__main__")
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                return error.code or 0
            print(error.code, file=sys.stderr)
            return 1
        return 0

    try:
        code = judged() if name else ended()
    except BaseException:  # an exit is no verdict of a function
        traceback.print_exc()
        code = {_FAILED_CODE} if name else 1
    sys.stdout.flush()
    with open({_VERDICT!r}, "w") as file:
        file.write(f"{{token}} {{code & 255}}")
    sys.exit(code)

main()
"""
"""Runs a checker in Python, a function of it or all of it, and says its verdict when that has come to its end: what a
checker evaluates can end it with an exit code that says right."""


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
    in_python = checker.language in ("", "python")
    taken = (INPUT, OUTPUT, ANSWER, *((SOURCE_FILE, _VERDICT) if in_python else ()))
    for index, file in enumerate(checker.files):
        if file.path.partition("/")[0] in taken:
            problem = f"is {shown(file.path)}, which is the checker's own already"
            found.append(FieldError(f"checker.files[{index}].path", problem))
    if len(found) > before:
        return None
    files = [*checker.files, *(pb.InputFile(path=name) for name in (INPUT, OUTPUT, ANSWER))]
    code, args, entry = checker.code, [INPUT, OUTPUT, ANSWER], checker.entry_point
    if entry:
        if not in_python:
            found.append(FieldError("checker.entry_point", f"is set, must not be for {shown(checker.language)}"))
        if not _NAME.fullmatch(entry):
            problem = f"is {shown(checker.entry_point)}, must be a function's name"
            found.append(FieldError("checker.entry_point", problem))
    if in_python:
        if not code:
            found.append(FieldError("checker.code", "is empty, must be the source of a checker"))
        if len(code.encode()) > MAX_CODE:
            found.append(FieldError("checker.code", f"has more than {MAX_CODE} bytes"))
        files.append(pb.InputFile(path=SOURCE_FILE, content=code.encode()))
        code, args = _RUNS_CHECKER, [entry, *((INPUT, ANSWER, OUTPUT) if entry else args)]
    execution = pb.ExecuteCodeRequest(
        code=code,
        language=checker.language,
        args=args,
        files=files,
        return_paths=[_VERDICT] if in_python else [],
        limits=checker.limits,
        tenant=request.tenant,
    )
    try:
        program = validate(execution, installed=installed, policy=policy)
    except FieldErrors as errors:
        found += [FieldError(f"checker.{error.field}", error.problem) for error in errors.errors]
        return None
    _check_room(found, program, cases, limits)
    own = replace(program.limits, return_bytes=max(program.limits.return_bytes, _VERDICT_BYTES))
    return None if len(found) > before else replace(program, limits=own)


def _check_room(found: list[FieldError], program: RunRequest, cases: Sequence[object], limits: Limits) -> None:
    """Checks that the largest case fits beside the checker's own files, so that no output can keep it from running."""
    sizes = [len(case.stdin) + len(case.expected_stdout) for case in cases if isinstance(case, StdioCase)]
    needed = disk_use(program.files) + len(program.code) + max(sizes, default=0) + limits.output_bytes + 4 * PAGE
    if needed > program.limits.disk_bytes:
        problem = f"is {program.limits.disk_bytes}, but its files and those of a case can need {needed}"
        found.append(FieldError("checker.limits.disk_bytes", problem))


def new_token(checker: RunRequest) -> str:
    """Token that one run of the checker returns with its verdict; empty if the run can't return it."""
    return secrets.token_hex(16) if checker.return_paths else ""


def check_request(checker: RunRequest, case: StdioCase, output: bytes, token: str) -> RunRequest:
    """The run that checks `output`."""
    contents = {INPUT: case.stdin, OUTPUT: output, ANSWER: case.expected_stdout}
    files = [replace(file, content=contents.get(file.path, file.content)) for file in checker.files]
    return replace(checker, files=tuple(files), stdin=token.encode())


def judge_check_run(check: ExecutionResult, token: str) -> Judgement | None:
    """Returns what a run of the checker says; None: it failed. Without a `token` its exit code alone counts."""
    if check.cause is Cause.INFRA:
        return Judgement(Verdict.ERROR, Cause.INFRA, f"The checker could not be run: {check.message}")
    if token and [file.content for file in check.files] != [f"{token} {check.exit_code}".encode()]:
        return None
    if check.outcome is Outcome.FINISHED:
        return PASSED
    if check.outcome is Outcome.NONZERO_EXIT and check.exit_code in _WRONG_CODES:
        said = (check.stderr.text or check.stdout.text).strip()[:1000]
        return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, said or "The checker does not accept the output.")
    return None


def judge_control(check: ExecutionResult, verdict: Judgement | None) -> Judgement:
    """For a checker that failed: `check` on the candidate's output; `verdict` is its on the expected one."""
    if check.outcome is Outcome.COMPILE_ERROR and check.compilation is not None:
        lines = [
            line for stream in (check.compilation.stderr, check.compilation.stdout) for line in stream.text.splitlines()
        ]
        errors = [line for line in lines if "error" in line.lower()] or lines or [check.message]
        how = f"The checker does not compile: {errors[0][:1000]}"
    else:
        said = (check.stderr.text.strip().splitlines() or [check.message or "it came to no verdict."])[-1][:1000]
        how = f"The checker failed ({check.outcome}, exit code {check.exit_code}): {said}"
    if verdict is None:
        return Judgement(Verdict.BROKEN_CASE, Cause.TASK, f"{how} It does so for the expected output too.")
    if verdict.cause is Cause.INFRA:
        return verdict
    return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, f"{how} It does not for the expected output.")
