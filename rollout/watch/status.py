"""Asks a limiter, executors and rollout services what they are doing, and shows the answers to people and to programs.

Every call has a deadline. Who does not answer becomes one sentence.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.errors import FairboxError
from fairbox.net.channels import open_channel
from fairbox.net.grpc_errors import why_unavailable
from fairbox.security import ClientSecurity, client_security
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from rollout.v1 import rollout_pb2, rollout_pb2_grpc

if TYPE_CHECKING:
    from executor_service.v1.executor_pb2_grpc import ExecutorServiceAsyncStub as Executor
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub as LimiterAdmin
    from rollout.v1.rollout_pb2_grpc import RolloutServiceAsyncStub as Rollout

T = TypeVar("T")

HOLDERS = 1_000
"""Leases, and sessions of an executor, that are asked for, the oldest first."""
_SHOWN = 50
"""Entries of a list that are shown one by one."""
_ALARMS = frozenset({"recovering", "draining", "insecure"})
"""Names of what is no normal state when it is true."""
# Protobuf renamed the parameter in version 5, and both are in use.
_DEFAULTS = (
    "always_print_fields_with_no_presence"
    if "always_print_fields_with_no_presence" in inspect.signature(MessageToDict).parameters
    else "including_default_value_fields"
)


class _NoAnswerError(FairboxError):
    """A call that failed; the text says how."""


async def ask(
    limiter: str, executors: Sequence[str], rollouts: Sequence[str] = (), *, timeout_s: float
) -> dict[str, Any]:
    """Asks everybody at once. Never fails: who does not answer has a `problem`.

    `limiter` is the address of its admin service; empty: it is not asked. TLS and tokens are those of the environment
    (`fairbox.security.client_security`): an operator's for the limiter, a client's or an operator's for the others.
    Names are as in the protos, defaults filled in; 64-bit numbers are strings, as protobuf's JSON has them.
    """
    operator, client = client_security(admin=True), client_security()
    if not client.token_file:  # operators may ask executors too
        client = operator
    answers = await asyncio.gather(
        *([_ask_limiter(limiter, operator, timeout_s)] if limiter else []),
        *(_ask_executor(target, client, timeout_s) for target in executors),
        *(_ask_rollouts(target, client, timeout_s) for target in rollouts),
    )
    first = answers.pop(0) if limiter else None
    return {"limiter": first, "executors": answers[: len(executors)], "rollouts": answers[len(executors) :]}


def everybody(found: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is, its answer) of all that were asked."""
    if found["limiter"] is not None:
        yield "limiter", found["limiter"]
    yield from (("executor", each) for each in found["executors"])
    yield from (("rollout service", each) for each in found["rollouts"])


def is_complete(found: Mapping[str, Any]) -> bool:
    """Says whether everybody answered."""
    return not any(answer["problem"] for _, answer in everybody(found))


def nothing_listens(found: Mapping[str, Any]) -> bool:
    """Says whether somebody's machine was reached, and refused the connection."""
    return any("Connection refused" in answer["problem"] for _, answer in everybody(found))


async def _ask_limiter(target: str, security: ClientSecurity, timeout_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {"target": target, "problem": "", "status": None, "leases": [], "leader": ""}
    async with open_channel(target, security=security) as channel:
        stub = cast("LimiterAdmin", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        try:
            request = limiter_pb2.GetStatusRequest()
            found["status"] = _plain(await _answer(stub.GetStatus(request, timeout=timeout_s), timeout_s))
        except _NoAnswerError as error:
            return found | {"problem": f"limiter on {target} {error}"}
        try:
            leases = limiter_pb2.ListLeasesRequest(page_size=HOLDERS)
            listed = await _answer(stub.ListLeases(leases, timeout=timeout_s), timeout_s)
        except _NoAnswerError as error:
            return found | {"leader": str(error)}
        return found | {"leases": [_plain(lease) for lease in listed.leases]}


async def _ask_executor(target: str, security: ClientSecurity, timeout_s: float) -> dict[str, Any]:
    async with open_channel(target, security=security) as channel:
        stub = cast("Executor", executor_pb2_grpc.ExecutorServiceStub(channel))
        found: dict[str, Any] = {"target": target, "problem": "", "status": None, "sessions": []}
        try:
            request = executor_pb2.GetStatusRequest()
            status = await _answer(stub.GetStatus(request, timeout=timeout_s), timeout_s)
            page = executor_pb2.ListSessionsRequest(page_size=HOLDERS)
            listed = await _answer(stub.ListSessions(page, timeout=timeout_s), timeout_s)
        except _NoAnswerError as error:
            return found | {"problem": f"executor on {target} {error}"}
        return found | {"status": _plain(status), "sessions": [_plain(each) for each in listed.sessions]}


async def _ask_rollouts(target: str, security: ClientSecurity, timeout_s: float) -> dict[str, Any]:
    async with open_channel(target, security=security) as channel:
        stub = cast("Rollout", rollout_pb2_grpc.RolloutServiceStub(channel))
        found: dict[str, Any] = {"target": target, "problem": "", "status": None}
        try:
            request = rollout_pb2.GetStatusRequest()
            return found | {"status": _plain(await _answer(stub.GetStatus(request, timeout=timeout_s), timeout_s))}
        except _NoAnswerError as error:
            return found | {"problem": f"rollout service on {target} {error}"}


async def _answer(call: Awaitable[T], timeout_s: float) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _NoAnswerError(_sentence(error, timeout_s)) from None


def _sentence(error: grpc.aio.AioRpcError, timeout_s: float) -> str:
    """Says how a call failed, phrased to follow the name of the service."""
    details = " ".join((error.details() or "").split())
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"did not answer within {timeout_s:g} s"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "is something else: it does not know this service (limiter: its admin port, 50053 by default)"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return f"is not available: {why_unavailable(details)}"
    return f"refused: {error.code().name}: {details}"


def _plain(message: Message) -> dict[str, Any]:
    options: dict[str, Any] = {"preserving_proto_field_name": True, _DEFAULTS: True}
    return MessageToDict(message, **options)


def as_tables(found: Mapping[str, Any]) -> RenderableType:
    """Every answer, for a person: a line for each field, and for each entry of a list."""
    parts: list[RenderableType] = []
    for kind, answer in everybody(found):
        if answer["problem"]:
            parts.append(Text(answer["problem"], "red"))
            continue
        parts.append(Text(f"{kind} on {answer['target']}", "bold"))
        if answer.get("leader"):
            parts.append(Text(f"standing by; it {answer['leader']}", "yellow"))
        # The number of sessions, in an executor's status, makes room for the sessions themselves.
        listed = {name: answer[name] for name in ("leases", "sessions") if name in answer}
        parts.append(_table(answer["status"] | listed))
    return Group(*parts)


def _table(status: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in status.items():
        lines = [_line(name, each) for each in (value if isinstance(value, list) else [value])]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
        style = "yellow" if name in _ALARMS and value else ""
        for number, line in enumerate(filter(None, lines)):
            table.add_row(Text("" if number else f"  {name}", "dim"), Text(line, style))
    return table


def _line(name: str, value: Any) -> str:
    """A value on one line; of a message the fields that are set."""
    if isinstance(value, dict):
        shown = {key: _line(key, each) for key, each in value.items() if each not in ("", "0", 0, False, None)}
        return "  ".join(f"{key} {text}" for key, text in shown.items() if text)
    if isinstance(value, list):
        return ", ".join(_line(name, each) for each in value)
    if isinstance(value, float) and name.endswith("_at_s"):
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M} UTC"
    if isinstance(value, float) and name.endswith("_s"):
        return span(value) if not name.endswith("_per_s") else f"{value:.1f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def span(seconds: float) -> str:
    """A duration with as many digits as matter."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
