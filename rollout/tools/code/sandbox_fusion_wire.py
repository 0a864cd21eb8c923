"""SandboxFusion's `/run_code` as a client sees it: the address, the request, how long it may take, the reply. Pure.

The reply comes from a stranger. Invariants: what doesn't fit the declared shape, or contradicts itself, is a BadReply
and never text for a model; unknown fields are ignored; every text that is kept is bounded.

| reply | outcome |
| --- | --- |
| SandboxError, or a command with status Error | BadReply: the sandbox failed, not the program |
| `compile_result` that timed out or has a `return_code` other than 0 | COMPILE_ERROR |
| `run_result` TimeLimitExceeded | TIME_LIMIT |
| `return_code` 0, above 0, below 0 | FINISHED, NONZERO_EXIT, SIGNALED |
| 137, and fairbox's own gateway says which limit that was | MEMORY_LIMIT, PROCESS_LIMIT, OUTPUT_LIMIT |
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from executor_service import Cause, Compilation, ExecutionResult, Outcome, Output
from fairbox.bounded_json import loads

COMPILE_S = 30.0
"""Time for compiling, as an executor gives it by default; Python needs none."""
_ALLOWANCE_S = 10.0
"""Seconds for the sandbox's own queue and the way there and back; verl's client allows as much."""
_MARGIN_S = 5.0
"""By which a lease outlives the request that runs under it."""
LONGEST_TIMEOUT_S = 86_400.0 - COMPILE_S - _ALLOWANCE_S - _MARGIN_S
"""Longest timeout of a program, seconds: no limiter gives leases for longer than a day."""
MOST_CODE = 1 << 20
"""Bytes of a program, as for an executor."""
MOST_REPLY = 16 << 20
"""Bytes of a reply that are read. SandboxFusion and fairbox's gateway keep 1 MiB of each stream of a program, which as
JSON is at most six times as long."""
_MOST_OUTPUT = 1 << 20
"""Bytes of one stream that are kept."""
MOST_DETAIL = 300
"""Characters of what a service says of its own failure."""
_DEPTH, _VALUES = 16, 10_000
"""Most levels of nesting, and most values, of a reply; its own fields are some thirty values in three levels."""
_KILLED = 137
"""128 + SIGKILL: what fairbox's gateway has for every limit but time."""
_LIMITS = (Outcome.MEMORY_LIMIT, Outcome.PROCESS_LIMIT, Outcome.OUTPUT_LIMIT)
_LONGEST_RETRY_S = 30.0


class BadReply(ValueError):
    """The reply does not say what became of a program; the text says why."""


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Command(_Shape):
    """The result of a compiler or a program."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: Seconds | None = None
    return_code: Annotated[int, Field(ge=-128, lt=1 << 32)] | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdout_truncated: Any = None
    stderr_truncated: Any = None

    @property
    def ended_well(self) -> bool:
        return self.status == "Finished" and self.return_code == 0


class _Reply(_Shape):
    """The reply of `/run_code`. Fields of fairbox's gateway may be missing, or mean something else elsewhere."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str | None = None
    compile_result: _Command | None = None
    run_result: _Command | None = None
    outcome: Any = None
    reason: Any = None
    queue_time: Any = None


def url_problem(url: str) -> str | None:
    """Returns what is wrong with the address of a sandbox, to follow its value; None: nothing."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no address: {error}"
    if parts.scheme not in ("http", "https") or not host or any(each.isspace() for each in url):
        return "must be like http://HOST:8080/run_code, with http or https"
    if parts.path in ("", "/"):
        return f"has no path, and requests are posted to it as it stands: {parts.scheme}://{parts.netloc}/run_code"
    return None


def shown_url(url: str) -> str:
    """Returns the address without its secrets: the path can hold a token, and a password can stand before the host."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def request_s(timeout_s: float) -> float:
    """Returns the seconds that the request of a program with this timeout may take in all."""
    return timeout_s + COMPILE_S + _ALLOWANCE_S


def hold_s(timeout_s: float) -> float:
    """Returns the hold time of the lease that such a request runs under, seconds."""
    return request_s(timeout_s) + _MARGIN_S


def request_body(code: str, language: str, timeout_s: float, memory_limit_mb: int | None) -> bytes:
    """Makes the JSON that is posted, with all fields that verl's client sends."""
    body = {
        "code": code,
        "language": language,
        "run_timeout": timeout_s,
        "compile_timeout": COMPILE_S,
        "memory_limit_MB": -1 if memory_limit_mb is None else memory_limit_mb,
        "stdin": None,
        "files": {},
        "fetch_files": [],
    }
    return json.dumps(body, ensure_ascii=False).encode()


def read_reply(data: bytes, timeout_s: float) -> ExecutionResult:
    """Reads what became of the program; its cause is POLICY. Raises BadReply."""
    try:
        reply = _Reply.model_validate(loads(data, depth=_DEPTH, left=[_VALUES], finite=True))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the reply"
        raise BadReply(f"{where}: {problem['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise BadReply(f"it is no JSON: {str(error)[:MOST_DETAIL]}") from None
    return _result(reply, timeout_s)


def _result(reply: _Reply, timeout_s: float) -> ExecutionResult:
    compiled, ran = reply.compile_result, reply.run_result
    failed = next((each for each in (compiled, ran) if each is not None and each.status == "Error"), None)
    if reply.status == "SandboxError" or failed is not None:
        said = reply.message or (failed.stderr if failed is not None else "") or "it does not say why"
        raise BadReply(f"its sandbox failed: {said[:MOST_DETAIL]}")
    last = ran if compiled is None or compiled.ended_well else compiled
    if last is None:
        raise BadReply("it says neither how the program ended nor why it did not run")
    if last.status == "Finished" and last.return_code is None:
        raise BadReply("it says that a command finished, and not with which code")
    if last.ended_well != (reply.status == "Success"):
        raise BadReply(f"it says {reply.status}, and its results say otherwise")
    compilation = None if compiled is None else _compilation(compiled)
    if last is compiled:
        code = 0 if compilation is None else compilation.exit_code
        return ExecutionResult(Outcome.COMPILE_ERROR, Cause.POLICY, exit_code=code, compilation=compilation)
    reason = reply.reason[:MOST_DETAIL] if isinstance(reply.reason, str) else ""
    outcome, errors = _outcome(last), last.stderr or ""
    if last.return_code == _KILLED and reply.outcome in _LIMITS:
        outcome = Outcome(reply.outcome)
        errors = errors.removesuffix(f"{reason}\n")  # which the gateway has put there
    elif outcome is Outcome.TIME_LIMIT:
        reason = reason or f"Killed: the program ran for longer than {timeout_s:g} s."
    else:
        reason = ""
    return ExecutionResult(
        outcome,
        Cause.POLICY,
        exit_code=_exit_code(last),
        signal=max(0, -(last.return_code or 0)),
        stdout=_output(last.stdout, last.stdout_truncated),
        stderr=_output(errors, last.stderr_truncated),
        compilation=compilation,
        queue_time_s=_seconds(reply.queue_time),
        wall_time_s=last.execution_time or 0.0,
        message=reason,
    )


def _outcome(command: _Command) -> Outcome:
    if command.status == "TimeLimitExceeded":
        return Outcome.TIME_LIMIT
    code = command.return_code or 0
    return Outcome.FINISHED if code == 0 else Outcome.NONZERO_EXIT if code > 0 else Outcome.SIGNALED


def _exit_code(command: _Command) -> int:
    """Returns the code as a shell has it: 128 and the signal, which is SIGKILL at the time limit."""
    code = _KILLED if command.return_code is None else command.return_code
    return code if code >= 0 else 128 - code


def _compilation(command: _Command) -> Compilation:
    return Compilation(
        _outcome(command),
        exit_code=_exit_code(command),
        stdout=_output(command.stdout, command.stdout_truncated),
        stderr=_output(command.stderr, command.stderr_truncated),
        wall_time_s=command.execution_time or 0.0,
    )


def _output(text: str | None, truncated: object) -> Output:
    data = (text or "").encode("utf-8", "replace")
    return Output(data[:_MOST_OUTPUT], len(data), truncated is True or len(data) > _MOST_OUTPUT)


def _seconds(value: object) -> float:
    """Reads a time of fairbox's gateway; 0 if it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e6 else 0.0


def retry_after_s(value: str | None) -> float:
    """Reads the seconds of a Retry-After header, at most half a minute; 0 if it holds none, but a date."""
    text = (value or "").strip()
    return min(float(text), _LONGEST_RETRY_S) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def detail_of(data: bytes) -> tuple[str, bool]:
    """Returns (the words of a refusal, bounded; whether it finds `code` alone wrong). `data` begins its body."""
    text = data.decode("utf-8", "replace")
    try:
        found = loads(text, depth=_DEPTH, left=[_VALUES])
    except (ValueError, RecursionError):
        return text[:MOST_DETAIL].strip(), False
    detail = found.get("detail", found) if isinstance(found, dict) else found
    if not isinstance(detail, list):
        return str(detail)[:MOST_DETAIL], False
    entries = [each for each in detail[:10] if isinstance(each, dict)]
    said = "; ".join(f"{_place(each)}: {str(each.get('msg'))[:MOST_DETAIL]}" for each in entries)
    blamed = bool(entries) and len(entries) == len(detail) and all(_place(each) == "body.code" for each in entries)
    return (said or str(detail))[:MOST_DETAIL], blamed


def _place(entry: dict[str, Any]) -> str:
    where = entry.get("loc")
    return ".".join(str(each)[:50] for each in where[:5]) if isinstance(where, list) else "?"
