"""Runs programs for this interface through the executor's own queue, and names what can go wrong on the way.

Invariants: an answer comes within the request's budget; cancelling a call cancels its run; what is not the program's
doing (a failed sandbox, a full queue, a limiter that can't be reached) is Unavailable and never a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from executor_service.errors import ExecutorError, LeaseRefused, Overloaded
from executor_service.gateway.errors import Unavailable, unacceptable
from executor_service.gateway.requests import FIELD_NAMES, Budget
from executor_service.model import ExecutionResult, Outcome, RunRequest
from executor_service.runs.backends import Backend
from executor_service.runs.queue import ExecutionQueue
from executor_service.v1 import executor_pb2 as pb
from fairbox.apart import read_apart
from fairbox.errors import FieldErrors
from fairbox.security import current_identity

_RETRY_S = 1.0
"""Advice to one whose turn did not come."""


class Executions:
    """`admit` checks a request and sets its limits; it raises FieldErrors."""

    def __init__(self, runs: ExecutionQueue, admit: Callable[[pb.ExecuteCodeRequest], RunRequest]) -> None:
        self._runs = runs
        self._admit = admit

    async def run(
        self,
        request: pb.ExecuteCodeRequest,
        budget: Budget,
        names: Mapping[str, str] = FIELD_NAMES,
        work: Backend | None = None,
    ) -> ExecutionResult:
        """A result that the program could have caused. Raises Unacceptable, in the `names` of the interface, and
        Unavailable. `work` does it in place of the usual work. It is the tenant's whom the caller's token is for."""
        request.tenant = current_identity().for_tenant(request.tenant)
        whole, queued = asyncio.timeout(budget.total_s), asyncio.timeout(budget.queue_s)

        def started() -> None:
            if not queued.expired():
                queued.reschedule(None)

        try:
            async with whole, queued:
                admitted = await read_apart(request.ByteSize(), lambda: self._admit(request))
                result = await self._runs.execute(admitted, b"", work=work, on_start=started)
        except TimeoutError:
            if whole.expired():
                said = f"no result within {budget.total_s:g} s, which is what its timeouts allow"
                raise Unavailable(said) from None
            message = f"overloaded: its turn did not come within the {budget.queue_s:g} s that it can wait"
            raise Unavailable(message, _RETRY_S) from None
        except FieldErrors as errors:
            raise unacceptable(errors, names) from None
        except Overloaded as error:
            raise Unavailable(f"overloaded: {error}", error.retry_after_s) from None
        except LeaseRefused as error:
            raise Unavailable(f"no token to run under: {error}", _RETRY_S) from None
        except ExecutorError as error:  # the program was not started
            raise Unavailable(str(error), _RETRY_S) from None
        if result.outcome in (Outcome.SANDBOX_ERROR, Outcome.CANCELLED):
            raise Unavailable(result.message)
        return result
