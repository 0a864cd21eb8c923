"""Between the facts of grading and the messages of executor_service.v1, in both directions, for server and client."""

from __future__ import annotations

from collections.abc import Sequence

from executor_service.convert import (
    compilation_from_proto,
    compilation_to_proto,
    limits_to_proto,
    result_from_proto,
    result_to_proto,
)
from executor_service.grading.model import (
    AssertCase,
    Case,
    CaseResult,
    Checker,
    Comparison,
    FunctionCase,
    PytestCase,
    StdioCase,
    Tolerance,
    Verdict,
    VerifyResult,
    VerifyStyle,
)
from executor_service.model import Cause, InputFile, Limits
from executor_service.sandbox.inside.values import NotPlain, encode
from executor_service.v1 import executor_pb2 as pb

__all__ = ["case_to_proto", "style_of", "verify_from_proto", "verify_request", "verify_to_proto"]

_STYLES: dict[type, VerifyStyle] = {
    StdioCase: VerifyStyle.STDIO,
    FunctionCase: VerifyStyle.FUNCTION,
    AssertCase: VerifyStyle.ASSERT,
    PytestCase: VerifyStyle.PYTEST,
}


def style_of(cases: Sequence[Case]) -> VerifyStyle:
    """The style that all cases have. ValueError where they differ, or where there are none."""
    styles = {_STYLES[type(case)] for case in cases}
    if len(styles) != 1:
        raise ValueError(f"cases have {len(styles)} kinds, must have one: {', '.join(sorted(styles)) or 'none given'}")
    return styles.pop()


def verify_request(
    code: str,
    cases: Sequence[Case],
    *,
    language: str,
    entry_point: str,
    files: Sequence[InputFile],
    test_files: Sequence[InputFile],
    setup_code: str,
    limits: Limits,
    comparison: Comparison | None,
    tolerance: Tolerance | None,
    checker: Checker | None,
    stop_on_failure: bool,
    workspace_id: str,
    request_id: str,
    tenant: str,
) -> pb.VerifyCodeRequest:
    """ValueError where a value is not plain data or does not fit."""
    return pb.VerifyCodeRequest(
        code=code,
        language=language,
        style=pb.VerifyStyle.Value(f"VERIFY_STYLE_{style_of(cases).name}"),
        cases=[case_to_proto(case) for case in cases],
        entry_point=entry_point,
        files=_files_to_proto(files),
        test_files=_files_to_proto(test_files),
        setup_code=setup_code,
        limits=limits_to_proto(limits),
        comparison=pb.Comparison.Value(f"COMPARISON_{comparison.name}") if comparison else pb.COMPARISON_UNSPECIFIED,
        tolerance=pb.Tolerance(absolute=tolerance.absolute, relative=tolerance.relative) if tolerance else None,
        checker=_checker_to_proto(checker) if checker else None,
        stop_on_failure=stop_on_failure,
        workspace_id=workspace_id,
        request_id=request_id,
        tenant=tenant,
    )


def _files_to_proto(files: Sequence[InputFile]) -> list[pb.InputFile]:
    return [pb.InputFile(path=file.path, content=file.content, mode=file.mode) for file in files]


def _checker_to_proto(checker: Checker) -> pb.Checker:
    return pb.Checker(
        code=checker.code,
        language=checker.language,
        entry_point=checker.entry_point,
        files=_files_to_proto(checker.files),
        limits=limits_to_proto(checker.limits),
    )


def case_to_proto(case: Case) -> pb.VerifyCase:
    match case:
        case StdioCase():
            stdio = pb.StdioCase(stdin=case.stdin, expected_stdout=case.expected_stdout)
            return pb.VerifyCase(case_id=case.case_id, stdio=stdio)
        case FunctionCase():
            return pb.VerifyCase(case_id=case.case_id, function=_function_to_proto(case))
        case AssertCase():
            return pb.VerifyCase(case_id=case.case_id, assertion=pb.AssertCase(source=case.source))
    return pb.VerifyCase(case_id=case.case_id, pytest=pb.PytestCase(node_id=case.node_id))


def _function_to_proto(case: FunctionCase) -> pb.FunctionCase:
    try:
        return pb.FunctionCase(
            arguments=[encode(each).decode() for each in case.arguments],
            keywords={name: encode(each).decode() for name, each in case.keywords.items()},
            expected=encode(case.expected).decode(),
            tuples_are_lists=case.tuples_are_lists,
        )
    except NotPlain as error:
        raise ValueError(str(error)) from None


def verify_to_proto(result: VerifyResult) -> pb.VerifyCodeResponse:
    return pb.VerifyCodeResponse(
        cases=[_case_result_to_proto(case) for case in result.cases],
        all_passed=result.all_passed,
        cause=pb.Cause.Value(f"CAUSE_{result.cause.name}"),
        compilation=compilation_to_proto(result.compilation),
        deduplicated=result.deduplicated,
    )


def _case_result_to_proto(result: CaseResult) -> pb.CaseResult:
    return pb.CaseResult(
        case_id=result.case_id,
        verdict=pb.Verdict.Value(f"VERDICT_{result.verdict.name}"),
        cause=pb.Cause.Value(f"CAUSE_{result.cause.name}"),
        execution=result_to_proto(result.execution) if result.execution else None,
        actual=(result.actual or b"").decode(),
        message=result.message,
    )


def verify_from_proto(message: pb.VerifyCodeResponse) -> VerifyResult:
    """ValueError for a verdict or cause that this version does not know."""
    return VerifyResult(
        cases=tuple(_case_result_from_proto(case) for case in message.cases),
        cause=Cause(pb.Cause.Name(message.cause).removeprefix("CAUSE_")),
        compilation=compilation_from_proto(message.compilation) if message.HasField("compilation") else None,
        deduplicated=message.deduplicated,
    )


def _case_result_from_proto(message: pb.CaseResult) -> CaseResult:
    return CaseResult(
        case_id=message.case_id,
        verdict=Verdict(pb.Verdict.Name(message.verdict).removeprefix("VERDICT_")),
        cause=Cause(pb.Cause.Name(message.cause).removeprefix("CAUSE_")),
        execution=result_from_proto(message.execution) if message.HasField("execution") else None,
        actual=message.actual.encode() or None,
        message=message.message,
    )
