"""Between this executor's requests and results and SandboxFusion's. Pure.

What SandboxFusion has no word for is refused and never dropped in silence. A reply that makes no sense is an
InvalidReply; a status of its own sandbox is never taken for the program's.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from executor_service.model import (
    Cause,
    Compilation,
    FileStatus,
    IsolationLevel,
    Outcome,
    Output,
    OutputFile,
    RunRequest,
)
from fairbox.errors import FieldError, FieldErrors

__all__ = ["Facts", "InvalidReply", "body_of", "facts_of"]

Facts = dict[str, Any]
"""Fields of ExecutionResult."""
_MIB = 1 << 20
_PLAIN_MODE = 0o644


class InvalidReply(Exception):  # noqa: N818 - a fact about another service
    """The reply is not SandboxFusion's."""


def body_of(request: RunRequest, *, default_memory_bytes: int) -> dict[str, object]:
    """The body of /run_code. FieldErrors for what it can't carry.

    The server's default memory limit is not passed on: SandboxFusion's own limit is one of address space, under which
    numpy and threads fail, so only a limit that somebody chose is worth that.
    """
    found = [
        FieldError(name, f"is set, but {reason}")
        for name, reason in (
            ("args", "a remote sandbox takes no arguments"),
            ("env", "a remote sandbox takes no environment variables"),
            ("session_id", "a remote sandbox has no sessions"),
            ("workspace_id", "a remote sandbox has no workspaces"),
        )
        if getattr(request, name, None)
    ]
    for i, file in enumerate(request.files):
        if file.mode != _PLAIN_MODE:
            found.append(FieldError(f"files[{i}].mode", f"is {file.mode:#o}, must be 0o644 for a remote sandbox"))
    try:
        stdin = request.stdin.decode()
    except UnicodeDecodeError:
        stdin = ""
        found.append(FieldError("stdin", "is not UTF-8, which a remote sandbox needs"))
    if found:
        raise FieldErrors(found)
    limits = request.limits
    memory = -1 if limits.memory_bytes == default_memory_bytes else -(-limits.memory_bytes // _MIB)
    return {
        "code": request.code.decode(),
        "language": request.language,
        "compile_timeout": limits.compile_time_s,
        "run_timeout": limits.wall_time_s,
        "memory_limit_MB": memory,
        "stdin": stdin or None,
        "files": {file.path: base64.b64encode(file.content).decode() for file in request.files},
        "fetch_files": list(request.return_paths),
        # To a fairbox: after a refusal nothing of it may run. Others ignore it.
        "keep_place": False,
    }


def facts_of(reply: object, request: RunRequest) -> Facts:
    """What the result says. InvalidReply for what is none."""
    if not isinstance(reply, dict):
        raise InvalidReply("it is not an object")
    status, message = reply.get("status"), str(reply.get("message") or "")
    if status == "SandboxError":
        return {
            "outcome": Outcome.SANDBOX_ERROR,
            "cause": Cause.INFRA,
            "message": f"The remote sandbox failed: {message[:500]}",
        }
    if status not in ("Success", "Failed"):
        raise InvalidReply(f"its status is {status!r}")
    compiled, ran = _command(reply, "compile_result"), _command(reply, "run_result")
    facts: Facts
    if ran is not None:
        facts = _ended(ran, request.limits.output_bytes)
    elif compiled is not None:
        facts = {"outcome": Outcome.COMPILE_ERROR, "message": "Not run: compiling failed."}
    else:
        raise InvalidReply("it has neither run_result nor compile_result")
    said = str(reply.get("outcome"))
    if ran is not None and facts["outcome"] is not Outcome.FINISHED and said in Outcome.__members__:
        facts["outcome"] = Outcome(said)  # a fairbox at the other end, which knows more
    if (facts["outcome"] is Outcome.FINISHED) is not (status == "Success"):
        raise InvalidReply(f"its status is {status}, but its program ended with {facts['outcome']}")
    level = reply.get("isolation_level")
    return {
        **facts,
        "cause": Cause.POLICY,
        "message": str(reply.get("reason") or facts.get("message", "")),
        "files": _files(reply, request),
        "compilation": None if compiled is None else _compilation(compiled, request.limits.output_bytes),
        "isolation_level": IsolationLevel(level) if level in list(IsolationLevel) else IsolationLevel.NONE,
    }


def _command(reply: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    command = reply.get(name)
    if command is not None and not isinstance(command, dict):
        raise InvalidReply(f"its {name} is not an object")
    return command


def _ended(command: Mapping[str, Any], output_bytes: int) -> Facts:
    status, code = command.get("status"), command.get("return_code")
    facts: Facts = {
        "stdout": _output(command, "stdout", output_bytes),
        "stderr": _output(command, "stderr", output_bytes),
        "wall_time_s": _number(command, "execution_time"),
        "cpu_time_s": _number(command, "cpu_time"),
        "peak_memory_bytes": int(_number(command, "peak_memory_bytes")),
    }
    if status == "TimeLimitExceeded":
        return {**facts, "outcome": Outcome.TIME_LIMIT, "exit_code": 137, "signal": 9, "message": "Killed: too slow."}
    if status != "Finished" or not isinstance(code, int) or not -64 <= code <= 255:
        raise InvalidReply(f"its run_result has status {status!r} and return_code {code!r}")
    if code < 0:
        message = f"Ended by signal {-code}."
        return {**facts, "outcome": Outcome.SIGNALED, "exit_code": 128 - code, "signal": -code, "message": message}
    return {**facts, "outcome": Outcome.NONZERO_EXIT if code else Outcome.FINISHED, "exit_code": code}


def _compilation(command: Mapping[str, Any], output_bytes: int) -> Compilation:
    code = command.get("return_code")
    if command.get("status") == "TimeLimitExceeded":
        outcome, code = Outcome.TIME_LIMIT, 137
    elif command.get("status") != "Finished" or not isinstance(code, int) or not -64 <= code <= 255:
        raise InvalidReply(f"its compile_result has status {command.get('status')!r} and return_code {code!r}")
    elif code < 0:
        outcome, code = Outcome.SIGNALED, 128 - code
    else:
        outcome = Outcome.NONZERO_EXIT if code else Outcome.FINISHED
    return Compilation(
        outcome,
        code,
        _output(command, "stdout", output_bytes),
        _output(command, "stderr", output_bytes),
        _number(command, "execution_time"),
        bool(command.get("cached")),
    )


def _output(command: Mapping[str, Any], name: str, most: int) -> Output:
    text = command.get(name) or ""
    if not isinstance(text, str):
        raise InvalidReply(f"its {name} is not text")
    data = text.encode("utf-8", "replace")
    cut = len(data) > most
    return Output(data[:most], len(data), cut or bool(command.get(f"{name}_truncated")))


def _number(command: Mapping[str, Any], name: str) -> float:
    value = command.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < float("inf") else 0.0


def _files(reply: Mapping[str, Any], request: RunRequest) -> tuple[OutputFile, ...]:
    """One entry for each path that was asked for."""
    files, why = reply.get("files") or {}, reply.get("files_left_out") or {}
    if not isinstance(files, dict) or not isinstance(why, dict):
        raise InvalidReply("its files are not an object")
    room, found = request.limits.return_bytes, []
    for path in request.return_paths:
        try:
            content = base64.b64decode(files[path], validate=True) if path in files else None
        except (binascii.Error, TypeError, ValueError):
            raise InvalidReply(f"its file {path!r} is not base64") from None
        if content is None:
            said = why.get(path)
            known = FileStatus(said) if said in list(FileStatus) else FileStatus.MISSING
            found.append(OutputFile(path, FileStatus.MISSING if known is FileStatus.RETURNED else known))
        elif len(content) > room:
            found.append(OutputFile(path, FileStatus.TOO_LARGE, b"", len(content)))
        else:
            room -= len(content)
            found.append(OutputFile(path, FileStatus.RETURNED, content, len(content)))
    return tuple(found)
