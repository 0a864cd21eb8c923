"""Turns a VerifyCodeRequest into a VerifyRequest, or says everything that is wrong with it, field by field. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from executor_service.grading.checker import checked_program, validate_checker, validate_interactor
from executor_service.grading.comparison import TOLERANCE
from executor_service.grading.model import AssertCase, Comparison, PytestCase, StdioCase, Tolerance, VerifyStyle
from executor_service.grading.request import CheckedCase, FunctionCall, VerifyRequest
from executor_service.grading.values import ARGUMENT_DEPTH, Malformed, call_text, check
from executor_service.guest.serve.values import MAX_BYTES, MAX_NODES
from executor_service.languages import canonical
from executor_service.model import InputFile, Limits
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.validation import MAX_FILES, LimitPolicy, validate
from fairbox.errors import FieldError, FieldErrors, shown

MAX_CASES = 10_000
MAX_SOURCE = 1 << 20
MAX_STDIN = 64 << 20
MAX_ID = 128
MAX_NODE_ID = 4096
MAX_ALTERNATIVES = 64
MAX_ARGUMENTS = 1024
"""Most arguments of one call."""
MAX_VALUES_BYTES, MAX_VALUES_PARTS = 32 << 20, 4 * MAX_NODES
"""Most bytes and parts of the values of all calls of a request together."""
MAX_PROBLEMS = 16
"""Problems of cases that are named; the rest is counted."""
MODULE_FILE = "solution.py"
_ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?")
_KIND = {
    VerifyStyle.STDIO: "stdio",
    VerifyStyle.FUNCTION: "function",
    VerifyStyle.ASSERT: "assertion",
    VerifyStyle.PYTEST: "pytest",
}
_ONLY_FOR = {
    "entry_point": (VerifyStyle.FUNCTION,),
    "setup_code": (VerifyStyle.ASSERT,),
    "test_files": (VerifyStyle.ASSERT, VerifyStyle.PYTEST),
    "comparison": (VerifyStyle.STDIO, VerifyStyle.FUNCTION),
}
"""Fields that other styles have no use for."""


def validate_verify(request: pb.VerifyCodeRequest, *, installed: Collection[str], policy: LimitPolicy) -> VerifyRequest:
    """The valid request. FieldErrors with every field that is not acceptable."""
    found: list[FieldError] = []
    _few(found, request)
    execution = pb.ExecuteCodeRequest(
        code=request.code,
        language=request.language,
        files=request.files,
        limits=request.limits,
        workspace_id=request.workspace_id,
        request_id=request.request_id,
        tenant=request.tenant,
    )
    program = checked_program(found, "", execution, installed, policy)
    style = _style(found, request)
    if style is None:
        raise FieldErrors(found)
    _fields_of(found, request, style)
    limits = program.limits if program else policy.defaults
    test_files = _test_files(found, request, limits, policy)
    cases = _cases(found, request, style, limits)
    tolerance = _tolerance(found, request)
    checker = interactor = None
    if request.HasField("checker") and style is VerifyStyle.STDIO:
        checker = validate_checker(found, request, cases, limits, installed=installed, policy=policy)
    if request.HasField("interactor") and style is VerifyStyle.STDIO:
        interactor = validate_interactor(found, request, cases, installed=installed, policy=policy)
    if found or program is None:
        raise FieldErrors(found)
    return VerifyRequest(
        program=program,
        style=style,
        comparison=_comparison(request.comparison, style),
        cases=tuple(cases),
        test_files=test_files,
        setup_code=request.setup_code,
        stop_on_failure=request.stop_on_failure,
        tolerance=tolerance,
        checker=checker,
        interactor=interactor,
    )


def _few(found: list[FieldError], request: pb.VerifyCodeRequest) -> None:
    """FieldErrors for numbers of entries that are too large to look at each."""
    for field, entries in (
        ("files", request.files),
        ("test_files", request.test_files),
        ("checker.files", request.checker.files),
        ("interactor.files", request.interactor.files),
        ("cases", request.cases),
    ):
        most = MAX_CASES if field == "cases" else MAX_FILES
        _most(found, field, len(entries), most, "entries")
    if found:
        raise FieldErrors(found)


def _style(found: list[FieldError], request: pb.VerifyCodeRequest) -> VerifyStyle | None:
    names = [style.value for style in VerifyStyle]
    try:
        return VerifyStyle(pb.VerifyStyle.Name(request.style).removeprefix("VERIFY_STYLE_"))
    except ValueError:
        found.append(FieldError("style", f"is {request.style}, must be one of {', '.join(names)}"))
        return None


def _comparison(value: int, style: VerifyStyle) -> Comparison:
    if value == pb.COMPARISON_UNSPECIFIED:
        return Comparison.WHITESPACE if style is VerifyStyle.STDIO else Comparison.EXACT
    return Comparison(pb.Comparison.Name(value).removeprefix("COMPARISON_"))  # type: ignore[arg-type]


def _tolerance(found: list[FieldError], request: pb.VerifyCodeRequest) -> Tolerance:
    if not request.HasField("tolerance"):
        return TOLERANCE
    if request.comparison != pb.COMPARISON_FLOAT:
        found.append(FieldError("tolerance", "is set, must not be without comparison FLOAT"))
    for name in ("absolute", "relative"):
        value = getattr(request.tolerance, name)
        if not 0 <= value < math.inf:
            found.append(FieldError(f"tolerance.{name}", f"is {value}, must be a number from 0"))
    return Tolerance(request.tolerance.absolute, request.tolerance.relative)


def _fields_of(found: list[FieldError], request: pb.VerifyCodeRequest, style: VerifyStyle) -> None:
    for name, styles in _ONLY_FOR.items():
        if getattr(request, name) and style not in styles:
            found.append(FieldError(name, f"is set, must not be for {style.value}: only {' and '.join(styles)} use it"))
    programs = {"checker": request.HasField("checker"), "interactor": request.HasField("interactor")}
    for name in (name for name, given in programs.items() if given):
        if style is not VerifyStyle.STDIO:
            found.append(FieldError(name, f"is set, must not be for {style.value}: only STDIO uses it"))
        if request.comparison:
            found.append(FieldError("comparison", f"is set beside {name}, must be one of them"))
        given = (index for index, case in enumerate(request.cases) if case.stdio.alternatives)
        if (index := next(given, None)) is not None:
            problem = f"are set beside {name}, which decides: must be empty"
            found.append(FieldError(f"cases[{index}].stdio.alternatives", problem))
    if style is not VerifyStyle.STDIO and canonical(request.language) != "python":
        found.append(FieldError("language", f"is {shown(request.language)}, must be python for {style.value}"))
    if style is VerifyStyle.FUNCTION and not _ENTRY.fullmatch(request.entry_point):
        problem = f"is {shown(request.entry_point)}, must be the name of a function, or Class.method"
        found.append(FieldError("entry_point", problem))
    for index, file in enumerate(request.files):
        if style is not VerifyStyle.STDIO and file.path.partition("/")[0] == MODULE_FILE:
            found.append(FieldError(f"files[{index}].path", f"is {shown(file.path)}, which is the candidate"))
    if style is VerifyStyle.PYTEST and not request.test_files:
        found.append(FieldError("test_files", "is empty, must hold the tests"))
    if request.comparison not in pb.Comparison.values():
        found.append(FieldError("comparison", f"is {request.comparison}, must be one of {', '.join(Comparison)}"))
    _most(found, "setup_code", len(request.setup_code.encode()), MAX_SOURCE, "bytes")


def _test_files(
    found: list[FieldError], request: pb.VerifyCodeRequest, limits: Limits, policy: LimitPolicy
) -> tuple[InputFile, ...]:
    """Checked as the files of any program."""
    own = [pb.InputFile(path=MODULE_FILE)]
    execution = pb.ExecuteCodeRequest(code="-", language="-", files=[*own, *request.test_files], limits=request.limits)
    try:
        validate(execution, installed=(), policy=policy)
    except FieldErrors as errors:
        found += [moved for error in errors.errors if (moved := _moved(error, len(own)))]
    return tuple(InputFile(file.path, file.content, file.mode or 0o644) for file in request.test_files)


def _moved(error: FieldError, own: int) -> FieldError | None:
    """A problem of `files` as one of `test_files`; None for those that are told elsewhere."""
    match = re.match(r"files(?:\[(\d+)\](.*))?$", error.field)
    if match is None or (match[1] and int(match[1]) < own):
        return None
    return FieldError(f"test_files[{int(match[1]) - own}]{match[2]}" if match[1] else "test_files", error.problem)


def _cases(
    found: list[FieldError], request: pb.VerifyCodeRequest, style: VerifyStyle, limits: Limits
) -> list[CheckedCase]:
    if not request.cases:
        found.append(FieldError("cases", f"has 0 entries, must have from 1 to {MAX_CASES}"))
    if style is VerifyStyle.FUNCTION and not _values_fit(found, request.cases):
        return []
    parts = 0
    kind = _KIND[style]
    cases: list[CheckedCase] = []
    problems: list[FieldError] = []
    for index, case in enumerate(request.cases):
        field = f"cases[{index}]"
        _most(problems, f"{field}.case_id", len(case.case_id), MAX_ID, "characters")
        if case.WhichOneof("kind") != kind:
            given = case.WhichOneof("kind") or "nothing"
            problems.append(FieldError(field, f"holds {given}, must hold {kind} for {style.value}"))
            continue
        case_id = case.case_id or str(index)
        match style:
            case VerifyStyle.STDIO:
                cases.append(_stdio(problems, f"{field}.stdio", case_id, case.stdio, limits))
            case VerifyStyle.FUNCTION:
                call, used = _function(problems, f"{field}.function", case_id, case.function, request.entry_point)
                cases += [call] if call else []
                parts += used
                if parts > MAX_VALUES_PARTS:
                    found.append(FieldError("cases", f"have values of more than {MAX_VALUES_PARTS} parts together"))
                    break
            case VerifyStyle.ASSERT:
                cases.append(_assertion(problems, f"{field}.assertion", case_id, case.assertion))
            case VerifyStyle.PYTEST:
                _most(problems, f"{field}.pytest.node_id", len(case.pytest.node_id), MAX_NODE_ID, "characters")
                if case.pytest.node_id.startswith("-"):
                    problem = f"is {shown(case.pytest.node_id)}, must be a node id like test_add.py::test_zero"
                    problems.append(FieldError(f"{field}.pytest.node_id", problem))
                cases.append(PytestCase(case.pytest.node_id, case_id))
    if sum(isinstance(case, PytestCase) and not case.node_id for case in cases) > 1:
        found.append(FieldError("cases", "has more than one case without node_id, must have at most one: it runs all"))
    found += problems[:MAX_PROBLEMS]
    if len(problems) > MAX_PROBLEMS:
        found.append(FieldError("cases", f"has {len(problems) - MAX_PROBLEMS} more problems"))
    return cases


def _stdio(found: list[FieldError], field: str, case_id: str, case: pb.StdioCase, limits: Limits) -> StdioCase:
    _most(found, f"{field}.stdin", len(case.stdin), MAX_STDIN, "bytes")
    size, others = len(case.expected_stdout), sum(map(len, case.alternatives))
    if size > limits.output_bytes:
        problem = f"has {size} bytes, must have at most limits.output_bytes ({limits.output_bytes})"
        found.append(FieldError(f"{field}.expected_stdout", problem))
    _most(found, f"{field}.alternatives", len(case.alternatives), MAX_ALTERNATIVES, "entries")
    if others and size + others > limits.output_bytes:
        most = f"limits.output_bytes ({limits.output_bytes})"
        problem = f"has {others} bytes, must have at most {most} together with expected_stdout"
        found.append(FieldError(f"{field}.alternatives", problem))
    return StdioCase(case.stdin, case.expected_stdout, case_id, tuple(case.alternatives))


def _assertion(found: list[FieldError], field: str, case_id: str, case: pb.AssertCase) -> AssertCase:
    if not case.source.strip():
        found.append(FieldError(f"{field}.source", "is empty, must be Python statements"))
    _most(found, f"{field}.source", len(case.source.encode()), MAX_SOURCE, "bytes")
    return AssertCase(case.source, case_id)


def _values_fit(found: list[FieldError], cases: Sequence[pb.VerifyCase]) -> bool:
    """Says whether the values of all calls are few and short enough to be looked at."""
    before, size = len(found), 0
    for index, case in enumerate(cases):
        call, field = case.function, f"cases[{index}].function"
        for name, entries in (("arguments", len(call.arguments)), ("keywords", len(call.keywords))):
            _most(found, f"{field}.{name}", entries, MAX_ARGUMENTS, "entries")
        if len(found) > before:
            return False
        arguments = sum(map(len, call.arguments)) + sum(len(name) + len(text) for name, text in call.keywords.items())
        size += arguments + len(call.expected)
    _most(found, "cases", size, MAX_VALUES_BYTES, "characters of values")
    return len(found) == before


def _function(
    found: list[FieldError], field: str, case_id: str, case: pb.FunctionCase, entry_point: str
) -> tuple[FunctionCall | None, int]:
    """The call, or None, and how many parts its values have."""
    before, of_call, of_expected = len(found), [0], [0]
    keywords = dict(case.keywords)
    named = [(f"arguments[{i}]", text) for i, text in enumerate(case.arguments)]
    named += [(f"keywords[{shown(name)}]", text) for name, text in keywords.items()]
    _most(found, f"{field}.arguments", sum(len(text) for _, text in named), MAX_BYTES, "characters with keywords")
    if len(found) > before:
        return None, 0
    for name, text in named:
        _value(found, f"{field}.{name}", text.encode(), ARGUMENT_DEPTH, of_call)
    expected = case.expected.encode()
    _value(found, f"{field}.expected", expected, 0, of_expected)
    parts = of_call[0] + of_expected[0]
    ask = b"" if len(found) > before else call_text(entry_point, case.arguments, keywords)
    _most(found, f"{field}.arguments", len(ask), MAX_BYTES, "bytes as text")
    call = None if len(found) > before else FunctionCall(case_id, ask, expected, case.tuples_are_lists)
    return call, parts


def _value(found: list[FieldError], field: str, text: bytes, depth: int, parts: list[int]) -> None:
    try:
        check(text, depth=depth, parts=parts)
    except Malformed as error:
        found.append(FieldError(field, f"is no plain value: {error}"))


def _most(found: list[FieldError], field: str, value: int, most: int, unit: str) -> None:
    if value > most:
        found.append(FieldError(field, f"has {value} {unit}, must have at most {most}"))
