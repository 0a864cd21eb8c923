"""Between the facts of `model` and the messages of executor_service.v1, in both directions, for server and client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import TypeVar

from executor_service.model import (
    Cause,
    Compilation,
    Display,
    ExecutionResult,
    FileStatus,
    IsolationLevel,
    Limits,
    Outcome,
    Output,
    OutputFile,
    SessionInfo,
    Workspace,
)
from executor_service.v1 import executor_pb2 as pb

__all__ = [
    "level_to_proto",
    "limits_to_proto",
    "outcome_to_proto",
    "result_from_proto",
    "result_to_proto",
    "session_from_proto",
    "session_to_proto",
    "workspace_from_proto",
]

E = TypeVar("E", bound=StrEnum)


_OUTCOMES = {each: pb.Outcome.Value(f"OUTCOME_{each.name}") for each in Outcome}
_CAUSES = {each: pb.Cause.Value(f"CAUSE_{each.name}") for each in Cause}
_LEVELS = {each: pb.IsolationLevel.Value(f"ISOLATION_LEVEL_{each.name}") for each in IsolationLevel}
_STATUSES = {each: pb.FileStatus.Value(f"FILE_STATUS_{each.name}") for each in FileStatus}
_OUTCOME_OF: dict[int, Outcome] = {number: each for each, number in _OUTCOMES.items()}
_CAUSE_OF: dict[int, Cause] = {number: each for each, number in _CAUSES.items()}
_LEVEL_OF: dict[int, IsolationLevel] = {number: each for each, number in _LEVELS.items()}
_STATUS_OF: dict[int, FileStatus] = {number: each for each, number in _STATUSES.items()}
_LIMITS = tuple(field.name for field in fields(Limits))


def outcome_to_proto(outcome: Outcome) -> pb.Outcome.ValueType:
    return _OUTCOMES[outcome]


def level_to_proto(level: IsolationLevel) -> pb.IsolationLevel.ValueType:
    return _LEVELS[level]


def limits_to_proto(limits: Limits) -> pb.Limits:
    return pb.Limits(**{name: getattr(limits, name) for name in _LIMITS})


def result_to_proto(result: ExecutionResult) -> pb.ExecutionResult:
    return pb.ExecutionResult(
        outcome=outcome_to_proto(result.outcome),
        cause=_CAUSES[result.cause],
        exit_code=result.exit_code,
        signal=result.signal,
        stdout=_output_to_proto(result.stdout),
        stderr=_output_to_proto(result.stderr),
        files=[
            pb.OutputFile(
                path=file.path,
                status=_STATUSES[file.status],
                content=file.content,
                size_bytes=file.size_bytes,
            )
            for file in result.files
        ],
        compilation=compilation_to_proto(result.compilation),
        queue_time_s=result.queue_time_s,
        setup_time_s=result.setup_time_s,
        wall_time_s=result.wall_time_s,
        cpu_time_s=result.cpu_time_s,
        peak_memory_bytes=result.peak_memory_bytes,
        isolation_level=level_to_proto(result.isolation_level),
        profile=result.profile,
        served_by=result.served_by,
        request_id=result.request_id,
        deduplicated=result.deduplicated,
        message=result.message,
        displays=[pb.Display(data=display.data, truncated=display.truncated) for display in result.displays],
        cell=result.cell,
    )


def result_from_proto(message: pb.ExecutionResult) -> ExecutionResult:
    """ValueError for an outcome, cause or status that this version does not know."""
    return ExecutionResult(
        outcome=_member(_OUTCOME_OF, message.outcome),
        cause=_member(_CAUSE_OF, message.cause),
        exit_code=message.exit_code,
        signal=message.signal,
        stdout=_output_from_proto(message.stdout),
        stderr=_output_from_proto(message.stderr),
        files=tuple(
            OutputFile(
                path=file.path,
                status=_member(_STATUS_OF, file.status),
                content=file.content,
                size_bytes=file.size_bytes,
            )
            for file in message.files
        ),
        compilation=compilation_from_proto(message.compilation) if message.HasField("compilation") else None,
        queue_time_s=message.queue_time_s,
        setup_time_s=message.setup_time_s,
        wall_time_s=message.wall_time_s,
        cpu_time_s=message.cpu_time_s,
        peak_memory_bytes=message.peak_memory_bytes,
        isolation_level=_member(_LEVEL_OF, message.isolation_level),
        profile=message.profile,
        served_by=message.served_by,
        request_id=message.request_id,
        deduplicated=message.deduplicated,
        message=message.message,
        displays=tuple(Display(dict(display.data), display.truncated) for display in message.displays),
        cell=message.cell,
    )


def session_to_proto(info: SessionInfo) -> pb.Session:
    return pb.Session(**{field.name: getattr(info, field.name) for field in fields(SessionInfo)})


def session_from_proto(message: pb.Session) -> SessionInfo:
    return SessionInfo(**{field.name: getattr(message, field.name) for field in fields(SessionInfo)})


def workspace_from_proto(message: pb.PrepareWorkspaceResponse) -> Workspace:
    return Workspace(
        workspace_id=message.workspace_id,
        commit=message.commit,
        size_bytes=message.size_bytes,
        cached=message.cached,
        served_by=message.served_by,
    )


def _output_to_proto(output: Output) -> pb.Output:
    return pb.Output(data=output.data, total_bytes=output.total_bytes, truncated=output.truncated)


def _output_from_proto(message: pb.Output) -> Output:
    return Output(message.data, message.total_bytes, message.truncated)


def compilation_to_proto(compilation: Compilation | None) -> pb.Compilation | None:
    if compilation is None:
        return None
    return pb.Compilation(
        outcome=outcome_to_proto(compilation.outcome),
        exit_code=compilation.exit_code,
        stdout=_output_to_proto(compilation.stdout),
        stderr=_output_to_proto(compilation.stderr),
        wall_time_s=compilation.wall_time_s,
        cached=compilation.cached,
    )


def compilation_from_proto(message: pb.Compilation) -> Compilation:
    return Compilation(
        outcome=_member(_OUTCOME_OF, message.outcome),
        exit_code=message.exit_code,
        stdout=_output_from_proto(message.stdout),
        stderr=_output_from_proto(message.stderr),
        wall_time_s=message.wall_time_s,
        cached=message.cached,
    )


def _member(table: Mapping[int, E], number: int) -> E:
    member = table.get(number)
    if member is None:
        kind = type(next(iter(table.values()))).__name__
        raise ValueError(f"the executor answered with {kind} {number}, which this client does not know")
    return member
