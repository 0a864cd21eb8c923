"""Runs programs for this interface through the executor's own queue, and names what can go wrong on the way.

Invariants: an answer comes within the request's budget; cancelling a call cancels its run; what is not the program's
doing (a failed sandbox, a full queue, a limiter that can't be reached) is Unavailable and never a result; nothing runs
any more when the block is left.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from types import TracebackType

from executor_service.cleanup import leave
from executor_service.core.admission import QueueFull
from executor_service.gateway.errors import Unavailable, unacceptable
from executor_service.gateway.places import Places, Ticket
from executor_service.gateway.requests import FIELD_NAMES, Budget
from executor_service.model import ExecutionResult, Outcome, RunRequest
from executor_service.remote.errors import RemoteBusy, RemoteDown
from executor_service.server.leases import LeaseGone, LeaseQueueFull, LeaseRefusal, LimiterDown
from executor_service.server.runs import Abandoned, Draining, QueueTimeout, Runs
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import FieldErrors

__all__ = ["Executions"]

_RETRY_S = 1.0
"""Advice to one whose turn did not come: its place is kept for a few seconds only."""


class Executions:
    """`async with Executions(...)`. `admit` checks a request and sets its limits; it raises FieldErrors."""

    def __init__(self, runs: Runs, admit: Callable[[pb.ExecuteCodeRequest], RunRequest]) -> None:
        self._runs = runs
        self._admit = admit
        self._places = Places()
        self._tasks = asyncio.TaskGroup()
        self._tickets: set[Ticket] = set()

    async def __aenter__(self) -> Executions:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ticket in self._tickets:
            ticket.cancel()
        await leave(self._tasks, error)

    async def run(
        self,
        request: pb.ExecuteCodeRequest,
        budget: Budget,
        names: Mapping[str, str] = FIELD_NAMES,
        *,
        keep_place: bool = True,
    ) -> ExecutionResult:
        """A result that the program could have caused. Raises Unacceptable, in the `names` of the interface, and
        Unavailable. `keep_place`: when its turn does not come in time, the next call for the same takes over."""
        key = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
        ticket = self._places.take(key) if keep_place else None
        if ticket is None:
            try:
                ticket = self._begin(self._admit(request))
            except FieldErrors as errors:
                raise unacceptable(errors, names) from None
        try:
            async with asyncio.timeout(budget.total_s):
                try:
                    async with asyncio.timeout(budget.queue_s):
                        await ticket.begun.wait()
                except TimeoutError:
                    message = f"overloaded: its turn did not come within the {budget.queue_s:g} s that it can wait"
                    raise Unavailable(message, _RETRY_S) from None
                await ticket.done.wait()
        except (TimeoutError, Unavailable) as error:
            if keep_place:
                self._places.leave(key, ticket)
            else:
                ticket.cancel()
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"no result within {budget.total_s:g} s, which is what its timeouts allow") from None
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        return _result(ticket, names)

    def _begin(self, request: RunRequest) -> Ticket:
        ticket = Ticket()
        task = self._tasks.create_task(self._drive(ticket, request), name="gateway")
        ticket.cancel = task.cancel
        self._tickets.add(ticket)
        return ticket

    async def _drive(self, ticket: Ticket, request: RunRequest) -> None:
        try:
            ticket.end(await self._runs.execute(request, b"", on_start=ticket.begun.set))
        except Exception as error:  # the boundary: the calls that wait for it get it
            ticket.end(error)
        finally:
            self._tickets.discard(ticket)


def _result(ticket: Ticket, names: Mapping[str, str]) -> ExecutionResult:
    """The result; an error is Unavailable, but for one that nobody foresaw."""
    match ticket.ending:
        case ExecutionResult(outcome=Outcome.SANDBOX_ERROR | Outcome.CANCELLED) as result:
            raise Unavailable(result.message)
        case ExecutionResult() as result:
            return result
        case QueueFull() | LeaseQueueFull() | RemoteBusy() as error:
            raise Unavailable(f"overloaded: {error}", error.retry_after_s)
        case QueueTimeout():
            raise Unavailable("overloaded: its turn did not come within queue_timeout_s", _RETRY_S)
        case Draining():
            raise Unavailable("this executor is ending and takes no more programs", _RETRY_S)
        case LimiterDown() | RemoteDown() as error:
            raise Unavailable(str(error), _RETRY_S)
        case Abandoned() | LeaseRefusal() | LeaseGone() as error:
            raise Unavailable(f"no token to run under: {error}", _RETRY_S)
        case FieldErrors() as errors:
            raise unacceptable(errors, names)
        case error:
            assert error is not None
            raise error
