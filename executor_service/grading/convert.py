"""Between the facts of grading and the messages of executor_service.v1, in both directions, for server and client."""

from __future__ import annotations

from collections.abc import Sequence

from executor_service.grading.model import (
    AssertCase,
    Case,
    CaseResult,
    FunctionCase,
    PytestCase,
    StdioCase,
    VerifyResult,
    VerifyStyle,
)
from executor_service.guest.serve.values import NotPlain, encode
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message, to_message

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


def case_to_proto(case: Case) -> pb.VerifyCase:
    """ValueError where a value is not plain data."""
    match case:
        case StdioCase():
            stdio = pb.StdioCase(stdin=case.stdin, expected_stdout=case.expected_stdout, alternatives=case.alternatives)
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
    cases = [to_message(pb.CaseResult, case, actual=(case.actual or b"").decode()) for case in result.cases]
    return to_message(pb.VerifyCodeResponse, result, cases=cases, all_passed=result.all_passed)


def verify_from_proto(message: pb.VerifyCodeResponse) -> VerifyResult:
    """ValueError for a verdict or cause that this version does not know."""
    return from_message(VerifyResult, message, cases=tuple(map(case_from_proto, message.cases)))


def case_from_proto(message: pb.CaseResult) -> CaseResult:
    """ValueError as `verify_from_proto`."""
    return from_message(CaseResult, message, actual=message.actual.encode() or None)
