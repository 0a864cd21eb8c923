"""Facts and messages: every field of every dataclass goes into its message and comes back."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from executor_service.grading.convert import verify_from_proto, verify_to_proto
from executor_service.grading.model import Checker, Tolerance, VerifyResult
from executor_service.model import Compilation, ExecutionResult, InputFile, Limits, SessionInfo, Workspace
from executor_service.rpc.replies import reply_with, verify_reply
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message, to_message


def filled(hint: Any, name: str = "") -> Any:
    """A value of this type in which nothing is as a default has it."""
    if get_origin(hint) is tuple:
        return (filled(get_args(hint)[0]), filled(get_args(hint)[0]))
    if hint in (int, float, str, bytes, bool):
        return {int: 7, float: 1.5, str: name or "x", bytes: b"7", bool: True}[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return list(hint)[-1]
    if get_args(hint):  # a mapping, or None beside a type
        return {"text/plain": b"1"} if get_args(hint) == (str, bytes) else filled(get_args(hint)[0], name)
    hints = get_type_hints(hint)
    return hint(**{field.name: filled(hints[field.name], field.name) for field in fields(hint)})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ExecutionResult, pb.ExecutionResult),
        (Compilation, pb.Compilation),
        (SessionInfo, pb.Session),
        (Workspace, pb.PrepareWorkspaceResponse),
        (Limits, pb.Limits),
        (InputFile, pb.InputFile),
        (Tolerance, pb.Tolerance),
        (Checker, pb.Checker),
    ],
)
def test_every_field_goes_there_and_comes_back(kind: Any, message: Any) -> None:
    value = filled(kind)
    sent = message.FromString(to_message(message, value).SerializeToString())
    assert {field.name for field, _ in sent.ListFields()} >= {field.name for field in fields(kind)}
    assert from_message(kind, sent) == value


def test_verdicts_go_there_and_come_back() -> None:
    result = filled(VerifyResult)
    assert verify_from_proto(verify_to_proto(result)) == result
    bare = VerifyResult((), result.cause)
    assert verify_from_proto(verify_to_proto(bare)) == bare


async def test_a_large_reply_is_the_message_that_a_small_one_would_be() -> None:
    result = filled(ExecutionResult)
    large = replace(result, stdout=replace(result.stdout, data=bytes(300_000)))
    written = await reply_with(pb.ExecuteCodeResponse, large)
    assert isinstance(written, bytes)
    assert pb.ExecuteCodeResponse.FromString(written).result == to_message(pb.ExecutionResult, large)
    verified = filled(VerifyResult)
    verified = replace(verified, cases=(*verified.cases, replace(verified.cases[0], execution=large)))
    of_cases = await verify_reply(verified)
    assert isinstance(of_cases, bytes)
    assert pb.VerifyCodeResponse.FromString(of_cases) == verify_to_proto(verified)


def test_a_number_that_this_version_does_not_know_is_named() -> None:
    message = to_message(pb.ExecutionResult, filled(ExecutionResult))
    message.outcome = 99  # type: ignore[assignment]
    with pytest.raises(ValueError, match="answered with Outcome 99"):
        from_message(ExecutionResult, message)
