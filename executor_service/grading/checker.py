"""Checkers and interactors: programs of a task that decide where several outputs are right, or talk with the candidate.
Pure.

A checker reads what the candidate printed, so the candidate can make it fail. Invariant: such a failure is the
candidate's wrong answer wherever the checker does not fail on the expected output too; only then is the case broken.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace

from executor_service.grading.conventions import (
    ANSWER,
    INPUT,
    MESSAGE,
    OUTPUT,
    POINTS_CODE,
    RULES,
    Rules,
    verdict_of,
)
from executor_service.grading.model import CheckerConvention, StdioCase, Verdict
from executor_service.grading.request import JudgeProgram
from executor_service.grading.rules import BROKEN_CODE, Judgement
from executor_service.model import Cause, ExecutionResult, FileStatus, Limits, Outcome, RunRequest
from executor_service.sandbox.limits import PAGE, disk_use
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import MAX_CODE, LimitPolicy, validate
from fairbox.errors import FieldError, FieldErrors, shown

SOURCE_FILE = "checker.py"
_NAME = re.compile(r"[^\W\d]\w*")
_VERDICT = ".verdict"
"""File that a checker in Python finds its token in, and writes its verdict to."""
_RETURNED_BYTES = 16 << 10
"""For the files by which such a program says its verdict."""
_RUNS_CHECKER = f"""\
def main():
    import numbers, os, runpy, sys, traceback

    with open({_VERDICT!r}) as file:
        token = file.read()
    os.unlink({_VERDICT!r})
    name, paths = sys.argv[1], sys.argv[2:]
    sys.argv[:] = [{SOURCE_FILE!r}, *paths]

    def judged():
        names = runpy.run_path({SOURCE_FILE!r}, run_name="checker")
        texts = []
        for path in paths:
            with open(path, "rb") as file:
                texts.append(file.read().decode("utf-8", "replace"))
        verdict = names[name](*texts)
        if isinstance(verdict, bool) or type(verdict).__name__ in ("bool", "bool_"):  # numpy's too
            return (0 if verdict else 1), ""
        if isinstance(verdict, numbers.Real):
            return {POINTS_CODE}, repr(float(verdict))
        raise TypeError(f"{{name}} returned {{verdict!r}}, must return True, False or a number of points")

    def ended():
        try:
            runpy.run_path({SOURCE_FILE!r}, run_name="__main__")
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                return (error.code or 0), ""
            print(error.code, file=sys.stderr)
            return 1, ""
        return 0, ""

    try:
        code, points = judged() if name else ended()
    except BaseException:  # an exit is no verdict of a function
        traceback.print_exc()
        code, points = ({BROKEN_CODE} if name else 1), ""
    sys.stdout.flush()
    with open({_VERDICT!r}, "w") as file:
        file.write(f"{{token}} {{code & 255}} {{points}}")
    sys.exit(code)

main()
"""
"""Runs a checker in Python, a function of it or all of it, and says its verdict when that has come to its end: what a
checker evaluates can end it with an exit code that says right."""
INTERACTOR_FILE = "interactor.py"
_RUNS_INTERACTOR = f"""\
def main():
    import runpy, sys, traceback

    sys.argv[0] = {INTERACTOR_FILE!r}
    try:
        with open({INTERACTOR_FILE!r}, "rb") as file:
            compile(file.read(), {INTERACTOR_FILE!r}, "exec")
        failed = ImportError
    except SyntaxError:
        failed = SyntaxError
    try:
        runpy.run_path({INTERACTOR_FILE!r}, run_name="__main__")
    except failed:
        traceback.print_exc()
        sys.exit({BROKEN_CODE})

main()
"""
"""Runs an interactor in Python. One that can't be loaded has failed by itself; another exception may be the candidate's
doing, as a SyntaxError for what it said, and ends with 1."""


def validate_checker(
    found: list[FieldError],
    request: pb.VerifyCodeRequest,
    cases: Sequence[object],
    limits: Limits,
    *,
    installed: Collection[str],
    policy: LimitPolicy,
) -> JudgeProgram | None:
    """The checker of a request; None with what is wrong in `found`."""
    checker, before = request.checker, len(found)
    in_python = checker.language in ("", "python")
    convention, rules = _convention(found, "checker", checker)
    taken = (*rules.names, *((SOURCE_FILE, _VERDICT) if in_python else ()))
    if not _names_are_free(found, "checker", checker, taken):
        return None
    code, args, entry = checker.code, [*rules.args], checker.entry_point
    files = [*checker.files, *_files_of(rules, (INPUT, OUTPUT, ANSWER))]
    if entry:
        _check_entry(found, checker, convention, in_python=in_python)
        args = [INPUT, ANSWER, OUTPUT]
    if in_python:
        _check_source(found, "checker", code)
        files += [pb.InputFile(path=SOURCE_FILE, content=code.encode()), pb.InputFile(path=_VERDICT)]
        code, args = _RUNS_CHECKER, [entry, *args]
    execution = pb.ExecuteCodeRequest(
        code=code,
        language=checker.language,
        args=args,
        files=files,
        return_paths=[*([_VERDICT] if in_python else []), *rules.returned],
        limits=checker.limits,
        tenant=request.tenant,
    )
    program = checked_program(found, "checker.", execution, installed, policy)
    if program is not None:
        _check_room(found, "checker", program, cases, limits.output_bytes)
    return None if program is None or len(found) > before else _judge(program, convention, checker)


def validate_interactor(
    found: list[FieldError],
    request: pb.VerifyCodeRequest,
    cases: Sequence[object],
    *,
    installed: Collection[str],
    policy: LimitPolicy,
) -> JudgeProgram | None:
    """The interactor of a request; None with what is wrong in `found`."""
    interactor, before = request.interactor, len(found)
    in_python = interactor.language in ("", "python")
    convention, rules = _convention(found, "interactor", interactor)
    taken = (*rules.names, *((INTERACTOR_FILE,) if in_python else ()))
    if not _names_are_free(found, "interactor", interactor, taken):
        return None
    if interactor.entry_point:
        found.append(FieldError("interactor.entry_point", "is set, must not be: an interactor is a program"))
    checked = request.HasField("checker")
    if checked and OUTPUT not in rules.names:
        problem = (
            f"is {convention} beside a checker, must be {CheckerConvention.TESTLIB}: only such ones write `output`"
        )
        found.append(FieldError("interactor.convention", problem))
    code, files = interactor.code, [*interactor.files, *_files_of(rules, (INPUT, ANSWER))]
    if in_python:
        _check_source(found, "interactor", code)
        files.append(pb.InputFile(path=INTERACTOR_FILE, content=code.encode()))
        code = _RUNS_INTERACTOR
    execution = pb.ExecuteCodeRequest(
        code=code,
        language=interactor.language,
        args=rules.args,
        files=files,
        return_paths=[*rules.returned, *([OUTPUT] if checked else [])],
        limits=interactor.limits,
        tenant=request.tenant,
    )
    program = checked_program(found, "interactor.", execution, installed, policy)
    if program is not None:
        _check_room(found, "interactor", program, cases, 0)
    return None if program is None or len(found) > before else _judge(program, convention, interactor)


def _convention(found: list[FieldError], name: str, judge: pb.Checker) -> tuple[CheckerConvention, Rules]:
    """Its convention with what that means; if it has none that is known, testlib's."""
    if not 0 <= judge.full_points < math.inf:
        found.append(FieldError(f"{name}.full_points", f"is {judge.full_points}, must be a number above 0, or 0: 1"))
    convention = CheckerConvention.TESTLIB
    if judge.convention not in pb.CheckerConvention.values():
        names = ", ".join(CheckerConvention)
        found.append(FieldError(f"{name}.convention", f"is {judge.convention}, must be one of {names}"))
    elif judge.convention:
        convention = CheckerConvention(pb.CheckerConvention.Name(judge.convention).removeprefix("CHECKER_CONVENTION_"))
    return convention, RULES[convention]


def _files_of(rules: Rules, names: Sequence[str]) -> list[pb.InputFile]:
    """Files of a case; they are empty until there is one. One in a folder makes the folder."""
    message = [MESSAGE] if MESSAGE in rules.returned else []
    return [pb.InputFile(path=name) for name in (*(each for each in names if each in rules.names), *message)]


def _check_entry(
    found: list[FieldError], checker: pb.Checker, convention: CheckerConvention, *, in_python: bool
) -> None:
    name = "checker.entry_point"
    if not in_python:
        found.append(FieldError(name, f"is set, must not be for {shown(checker.language)}"))
    if convention is not CheckerConvention.TESTLIB:
        found.append(FieldError(name, f"is set, must not be with the convention {convention}"))
    if not _NAME.fullmatch(checker.entry_point):
        found.append(FieldError(name, f"is {shown(checker.entry_point)}, must be a function's name"))


def _judge(program: RunRequest, convention: CheckerConvention, judge: pb.Checker) -> JudgeProgram:
    room = max(program.limits.return_bytes, _RETURNED_BYTES) if program.return_paths else program.limits.return_bytes
    limits = replace(program.limits, return_bytes=room)
    return JudgeProgram(replace(program, limits=limits), convention, judge.full_points or 1.0)


def _names_are_free(found: list[FieldError], name: str, judge: pb.Checker, taken: Collection[str]) -> bool:
    """Says whether none of its files has a name that fairbox gives another; adds to `found` which ones have."""
    before = len(found)
    for index, file in enumerate(judge.files):
        if file.path.partition("/")[0] in taken:
            problem = f"is {shown(file.path)}, which is the {name}'s own already"
            found.append(FieldError(f"{name}.files[{index}].path", problem))
    return len(found) == before


def _check_source(found: list[FieldError], name: str, code: str) -> None:
    if not code:
        found.append(FieldError(f"{name}.code", f"is empty, must be the source of the {name}"))
    if len(code.encode()) > MAX_CODE:
        found.append(FieldError(f"{name}.code", f"has more than {MAX_CODE} bytes"))


def checked_program(
    found: list[FieldError],
    prefix: str,
    execution: pb.ExecuteCodeRequest,
    installed: Collection[str],
    policy: LimitPolicy,
) -> RunRequest | None:
    """The program, checked as any other; None with what is wrong in `found`, whose fields begin with `prefix`."""
    try:
        return validate(execution, installed=installed, policy=policy)
    except FieldErrors as errors:
        found += [FieldError(f"{prefix}{error.field}", error.problem) for error in errors.errors]
        return None


def _check_room(
    found: list[FieldError], name: str, program: RunRequest, cases: Sequence[object], output_bytes: int
) -> None:
    """Checks that the largest case fits beside the program's own files, so that no output can keep it from running."""
    sizes = [len(case.stdin) + len(case.expected_stdout) for case in cases if isinstance(case, StdioCase)]
    needed = disk_use(program.files) + len(program.code) + max(sizes, default=0) + output_bytes + 4 * PAGE
    if needed > program.limits.disk_bytes:
        problem = f"is {program.limits.disk_bytes}, but its files and those of a case can need {needed}"
        found.append(FieldError(f"{name}.limits.disk_bytes", problem))


def new_token(checker: JudgeProgram) -> str:
    """Token that one run of the checker returns with its verdict; empty if the run can't return it."""
    return secrets.token_hex(16) if _VERDICT in checker.program.return_paths else ""


def check_request(checker: JudgeProgram, case: StdioCase, output: bytes, token: str) -> RunRequest:
    """The run that checks `output`."""
    contents = {INPUT: case.stdin, OUTPUT: output, ANSWER: case.expected_stdout, _VERDICT: token.encode()}
    by_file = OUTPUT in RULES[checker.convention].names
    return replace(_with_files(checker.program, contents), stdin=b"" if by_file else output)


def interactor_request(interactor: JudgeProgram, case: StdioCase) -> RunRequest:
    """The run that talks with a candidate in this case."""
    return _with_files(interactor.program, {INPUT: case.stdin, ANSWER: case.expected_stdout})


def _with_files(program: RunRequest, contents: dict[str, bytes]) -> RunRequest:
    files = [replace(file, content=contents.get(file.path, file.content)) for file in program.files]
    return replace(program, files=tuple(files))


def judge_check_run(checker: JudgeProgram, check: ExecutionResult, token: str) -> Judgement | None:
    """Returns what a run of the checker says; None: it failed. Without a `token` its exit code alone counts."""
    if check.cause is Cause.INFRA:
        return Judgement(Verdict.ERROR, Cause.INFRA, f"The checker could not be run: {check.message}")
    points = ""
    if token:
        said = next((file for file in check.files if file.path == _VERDICT), None)
        if said is None or said.status is not FileStatus.RETURNED:
            return None
        begins, _, points = said.content.decode("utf-8", "replace").rpartition(" ")
        if begins != f"{token} {check.exit_code}":
            return None
    return verdict_of(checker, check, "The checker does not accept the output.", points)


def judge_interactor_run(interactor: JudgeProgram, run: ExecutionResult) -> Judgement | None:
    """Returns what a run of the interactor says; None: it failed."""
    return verdict_of(interactor, run, "The interactor does not accept what it said.")


def judge_not_built(name: str, built: ExecutionResult) -> Judgement:
    """For a checker or interactor that could not be compiled."""
    if built.cause is Cause.INFRA:
        return Judgement(Verdict.ERROR, Cause.INFRA, f"The {name} could not be compiled: {built.message}")
    streams = (built.compilation.stderr, built.compilation.stdout) if built.compilation else ()
    lines = [line for stream in streams for line in stream.text.splitlines()]
    errors = [line for line in lines if "error" in line.lower()] or lines or [built.message]
    return Judgement(Verdict.BROKEN_CASE, Cause.TASK, f"The {name} does not compile: {errors[0][:1000]}")


def judge_control(check: ExecutionResult, verdict: Judgement | None) -> Judgement:
    """For a checker that failed: `check` on the candidate's output; `verdict` is its on the expected one."""
    said = (check.stderr.text.strip().splitlines() or [check.message or "it came to no verdict."])[-1][:1000]
    how = f"The checker failed ({check.outcome}, exit code {check.exit_code}): {said}"
    if check.outcome is Outcome.COMPILE_ERROR:
        how = judge_not_built("checker", check).message
    if verdict is None:
        return Judgement(Verdict.BROKEN_CASE, Cause.TASK, f"{how} It does so for the expected output too.")
    if verdict.cause is Cause.INFRA:
        return verdict
    return Judgement(Verdict.WRONG_ANSWER, Cause.POLICY, f"{how} It does not for the expected output.")
