"""A program as a client writes it down: for streams and batches, where several calls' worth of fields go together."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from executor_service.errors import InvalidRequest
from executor_service.model import InputFile, Limits
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import to_message
from fairbox.errors import FieldError
from fairbox.v1 import common_pb2
from limiter import LeaseLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The fields of `ExecutorClient.execute`, with the same names, defaults and meaning."""

    code: str
    language: str = "python"
    stdin: bytes | str = b""
    """A text is sent as UTF-8."""
    args: Sequence[str] = ()
    files: Sequence[InputFile] = ()
    return_paths: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    limits: Limits | None = None
    timeout: float | None = None
    """Seconds of wall time that it may take: the same as `limits.wall_time_s`, which is to be left out then."""
    workspace_id: str = ""
    workspace_read_only: bool = False
    """Without a writable layer above the workspace: writing to it fails."""
    image: str = ""
    """Name or id of an image that is its root."""
    user: str = ""
    """User of the image that it runs as; empty: the image's own."""
    profile: str = ""
    lease: LeaseLike | None = None
    request_id: str = ""
    """Empty: the client makes one, so that it can repeat the call when the connection breaks."""
    tenant: str = ""
    session_id: str = ""
    beside: bool = False
    """A command beside the shell of the session."""
    display: bool | None = None
    """True to display the value of the last expression; None: only in cells."""


_PROGRAM = tuple(each.name for each in fields(Program))
_LIMITS = tuple(each.name for each in fields(Limits))
"""Names of fields, once: each call would ask for them again."""


def program_to_proto(program: Program) -> pb.ExecuteCodeRequest:
    """InvalidRequest for what can't be sent: text that is not valid Unicode, a number that does not fit, or is none."""
    given = {name: getattr(program, name) for name in _PROGRAM}
    limits = limits_with(given["limits"], given.pop("timeout"))
    given["limits"] = None if limits is None else to_message(pb.Limits, limits)
    given["lease"] = _lease_to_proto(program.lease)
    given["request_id"] = program.request_id or uuid.uuid4().hex
    try:
        given["files"] = [to_message(pb.InputFile, file) for file in program.files]
        given["stdin"] = program.stdin.encode() if isinstance(program.stdin, str) else program.stdin
        return pb.ExecuteCodeRequest(**given)
    except ValueError as error:
        raise InvalidRequest(f"the request can't be sent: {error}", ()) from None


def limits_with(limits: Limits | None, timeout: float | None) -> Limits | None:
    """The limits of a request whose `timeout` is the wall time. InvalidRequest for a limit that is no number from 0,
    and for two wall times."""
    found = []
    for name in _LIMITS if limits is not None else ():
        value = getattr(limits, name)
        if not 0 <= value < math.inf:
            found.append(FieldError(f"limits.{name}", f"is {value}, must be a number from 0"))
    if timeout is not None:
        if not 0 < timeout < math.inf:
            found.append(FieldError("timeout", f"is {timeout}, must be a number of seconds above 0"))
        elif limits is not None and limits.wall_time_s:
            found.append(FieldError("timeout", "is given as well as limits.wall_time_s, which is the same; give one"))
    if found:
        raise InvalidRequest("; ".join(map(str, found)), tuple(found))
    return limits if timeout is None else replace(limits or Limits(), wall_time_s=timeout)


def _lease_to_proto(lease: LeaseLike | None) -> common_pb2.Lease | None:
    if lease is None:
        return None
    return common_pb2.Lease(
        bucket=lease.bucket, epoch=lease.epoch, seq=lease.seq, client_session_id=lease.client_session_id
    )
