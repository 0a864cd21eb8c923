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
from collections.abc import Mapping, Sequence
from typing import Any

from executor_service.model import Compilation, ExecutionResult, FileStatus, Outcome, Output

__all__ = ["at_once_too_late", "command_result", "files_of", "run_code_reply"]

_KILLED = 137
"""128 + SIGKILL, as a shell reports it."""
_LATE = (Outcome.TIME_LIMIT, Outcome.CPU_LIMIT)
_LIMITS = (Outcome.MEMORY_LIMIT, Outcome.PROCESS_LIMIT, Outcome.OUTPUT_LIMIT)
Json = dict[str, Any]


def run_code_reply(result: ExecutionResult, asked: Sequence[str], places: Mapping[str, str]) -> Json:
    """The body of /run_code. `asked` are the request's paths, `places` those that were looked for."""
    compiled = None if result.compilation is None else _compile_result(result.compilation, result.message)
    ran = None
    if result.outcome is not Outcome.COMPILE_ERROR:
        ran = command_result(
            result.outcome,
            result.exit_code,
            result.stdout,
            result.stderr,
            result.wall_time_s,
            message=result.message,
        ) | {"cpu_time": result.cpu_time_s, "peak_memory_bytes": result.peak_memory_bytes}
    files, left_out = files_of(result, asked, places)
    return {
        "status": "Success" if result.outcome is Outcome.FINISHED else "Failed",
        "message": "",
        "compile_result": compiled,
        "run_result": ran,
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


def _compile_result(compilation: Compilation, message: str) -> Json:
    return command_result(
        compilation.outcome,
        compilation.exit_code,
        compilation.stdout,
        compilation.stderr,
        compilation.wall_time_s,
        message=message,
    ) | {"cached": compilation.cached}


def command_result(
    outcome: Outcome, exit_code: int, stdout: Output, stderr: Output, wall_time_s: float, *, message: str = ""
) -> Json:
    """A CommandRunResult. `exit_code` is 128 + signal for a program that a signal ended."""
    code: int | None = exit_code
    errors = stderr.text
    if outcome in _LATE:
        code = None
    elif outcome in _LIMITS:
        code = _KILLED
        errors += f"{'' if not errors or errors.endswith(chr(10)) else chr(10)}{message}\n"
    elif outcome is Outcome.SIGNALED:
        code = 128 - exit_code
    return {
        "status": "TimeLimitExceeded" if outcome in _LATE else "Finished",
        "execution_time": wall_time_s,
        "return_code": code,
        "stdout": stdout.text,
        "stderr": errors,
        "stdout_truncated": stdout.truncated,
        "stderr_truncated": stderr.truncated,
    }


def files_of(
    result: ExecutionResult, asked: Sequence[str], places: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """(path -> content in base64, path -> why it is not there), with the paths as they were asked for."""
    found = {file.path: file for file in result.files}
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


def at_once_too_late(*, compiling: bool, served_by: str) -> Json:
    """For a timeout that is not above 0: over before it began."""
    late = command_result(Outcome.TIME_LIMIT, _KILLED, Output(), Output(), 0.0)
    return {
        "status": "Failed",
        "message": "",
        "compile_result": late if compiling else None,
        "run_result": None if compiling else late,
        "executor_pod_name": served_by or None,
        "files": {},
        "outcome": (Outcome.COMPILE_ERROR if compiling else Outcome.TIME_LIMIT).value,
        "cause": "POLICY",
    }
