"""A program as a client writes it down: for streams and batches, where several calls' worth of fields go together."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from executor_service.convert import limits_to_proto, to_message
from executor_service.errors import InvalidRequest
from executor_service.model import InputFile, Limits
from executor_service.v1 import executor_pb2 as pb
from fairbox.v1 import common_pb2
from limiter import LeaseLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The fields of `ExecutorClient.execute`, with the same names, defaults and meaning."""

    code: str
    language: str = "python"
    stdin: bytes = b""
    args: Sequence[str] = ()
    files: Sequence[InputFile] = ()
    return_paths: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    limits: Limits | None = None
    workspace_id: str = ""
    workspace_read_only: bool = False
    """Without a writable layer above the workspace: writing to it fails."""
    profile: str = ""
    lease: LeaseLike | None = None
    request_id: str = ""
    """Empty: the client makes one, so that it can repeat the call when the connection breaks."""
    tenant: str = ""
    session_id: str = ""
    display: bool | None = None
    """Whether the value of the last expression is displayed; None: in cells alone."""


def program_to_proto(program: Program) -> pb.ExecuteCodeRequest:
    """InvalidRequest for what can't be sent: text that is not valid Unicode, a number that does not fit."""
    try:
        return pb.ExecuteCodeRequest(
            code=program.code,
            language=program.language,
            stdin=program.stdin,
            args=program.args,
            files=[to_message(pb.InputFile, file) for file in program.files],
            return_paths=program.return_paths,
            env=program.env or {},
            limits=None if program.limits is None else limits_to_proto(program.limits),
            workspace_id=program.workspace_id,
            workspace_read_only=program.workspace_read_only,
            profile=program.profile,
            lease=_lease_to_proto(program.lease),
            request_id=program.request_id or uuid.uuid4().hex,
            tenant=program.tenant,
            session_id=program.session_id,
            display=program.display,
        )
    except ValueError as error:
        raise InvalidRequest(f"the request can't be sent: {error}", ()) from None


def _lease_to_proto(lease: LeaseLike | None) -> common_pb2.Lease | None:
    if lease is None:
        return None
    return common_pb2.Lease(
        bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id
    )
