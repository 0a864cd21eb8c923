"""From results of this executor to SandboxFusion's replies. Pure.

Invariants: no status outside SandboxFusion's own (clients reject others); stdout and stderr are always text; `message`
is empty, as theirs is for everything but a failure of the sandbox, which is a 504 here. What this executor knows beyond
theirs is in fields of its own, which clients ignore.

| outcome | status | run_result.status | return_code |
| --- | --- | --- | --- |
| FINISHED | Success | Finished | 0 |
| NONZERO_EXIT | Failed | Finished | its own |
| SIGNALED | Failed | Finished | -signal |
| TIME_LIMIT, CPU_LIMIT | Failed | TimeLimitExceeded | null |
| MEMORY_LIMIT, PROCESS_LIMIT, OUTPUT_LIMIT | Failed | Finished | 137, and the reason ends stderr |
| COMPILE_ERROR | Failed | null; the same for compile_result | |
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from executor_service.gateway.requests import fetched
from executor_service.model import Cause, Compilation, ExecutionResult, FileStatus, Outcome

_KILLED = 137
"""128 + SIGKILL, as a shell reports it."""
_LATE = (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT)
_LIMITS = (Outcome.MEMORY_LIMIT, Outcome.PROCESS_LIMIT, Outcome.OUTPUT_LIMIT)
Json = dict[str, Any]


def run_code_reply(result: ExecutionResult, asked: Sequence[str]) -> Json:
    """The body of /run_code. `asked` are the request's paths."""
    compiled, ran = result.compilation, result.outcome is not Outcome.COMPILE_ERROR
    return reply_of(
        result,
        asked,
        success=result.outcome is Outcome.FINISHED,
        compile_result=_command_result(compiled, result.message) | {"cached": compiled.cached} if compiled else None,
        run_result=run_result(result) if ran else None,
    )


def reply_of(result: ExecutionResult, asked: Sequence[str], *, success: bool, **parts: object) -> Json:
    """Returns the fields that both kinds of replies have, with `parts`, which only one of them has."""
    files, left_out = _files_of(result, asked)
    return {
        "status": "Success" if success else "Failed",
        "message": "",
        **parts,
        "executor_pod_name": result.served_by or None,
        "files": files,
        "files_left_out": left_out,
        "outcome": result.outcome.value,
        "cause": result.cause.value,
        "reason": result.message,
        "queue_time": result.queue_time_s,
        "setup_time": result.setup_time_s,
        "isolation_level": result.isolation_level.value,
    }


def run_result(result: ExecutionResult) -> Json:
    """The CommandRunResult of a program."""
    used = {"cpu_time": result.cpu_time_s, "peak_memory_bytes": result.peak_memory_bytes}
    return _command_result(result, result.message) | used


def _command_result(ran: ExecutionResult | Compilation, message: str) -> Json:
    code: int | None = ran.exit_code
    errors = ran.stderr.text
    if ran.outcome in _LATE:
        code = None
    elif ran.outcome in _LIMITS:
        code = _KILLED
        errors += f"{'' if not errors or errors.endswith(chr(10)) else chr(10)}{message}\n"
    elif ran.outcome is Outcome.SIGNALED:
        code = 128 - ran.exit_code
    return {
        "status": "TimeLimitExceeded" if ran.outcome in _LATE else "Finished",
        "execution_time": ran.wall_time_s,
        "return_code": code,
        "stdout": ran.stdout.text,
        "stderr": errors,
        "stdout_truncated": ran.stdout.truncated,
        "stderr_truncated": ran.stderr.truncated,
    }


def _files_of(result: ExecutionResult, asked: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(path -> content in base64, path -> why it is not there), with the paths as they were asked for."""
    found = {file.path: file for file in result.files}
    places = fetched(asked)[1]
    files, left_out = {}, {}
    for path in asked:
        file = found.get(places.get(path, ""))
        if file is None:
            left_out[path] = "not in the work folder" if path not in places else FileStatus.MISSING.value
        elif file.status is FileStatus.RETURNED:
            files[path] = base64.b64encode(file.content).decode()
        else:
            left_out[path] = file.status.value
    return files, left_out


def at_once_too_late(served_by: str, *, compiling: bool = False) -> ExecutionResult:
    """For a timeout that is not above 0: over before it began."""
    compilation = Compilation(Outcome.TIME_LIMIT, _KILLED) if compiling else None
    outcome = Outcome.COMPILE_ERROR if compiling else Outcome.TIME_LIMIT
    return ExecutionResult(outcome, Cause.POLICY, _KILLED, served_by=served_by, compilation=compilation)
