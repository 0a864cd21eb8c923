"""Seam between the queue and the ways to run something: what is done once a request has its slot and its lease.

The queue knows repetitions and cancellation; a `Backend` knows sandboxes. Each way to run something (programs, cells of
sessions) is one `Backend`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from executor_service.model import Cause, ExecutionResult, IsolationLevel, Outcome, RunRequest
from executor_service.runs.leases import Claim
from executor_service.sandbox.report import SandboxFailure, Stream

_log = logging.getLogger(__name__)
Observer = Callable[[Stream, bytes], None]
"""Is called in the event loop with output as it is read, up to the output limit. Must not block or raise."""


def _nothing() -> None:
    """Nothing runs that it would have to end."""


def _nobody(result: ExecutionResult) -> None:
    """Nobody waits for an early answer."""


@dataclass(eq=False, slots=True)
class Execution:
    """One request that holds a slot and a lease."""

    request: RunRequest
    number: int
    """Unique in the life of this server."""
    claim: Claim
    queue_s: float
    """Seconds that it waited for both."""
    observe: Observer | None = None
    answer: Callable[[ExecutionResult], None] = _nobody
    """May be called with the result before `perform` returns it: the caller gets it while the last of what ran is taken
    apart by the kernel. Lease and slot are given back when `perform` has returned."""
    started: bool = False
    """Set by the work, right before the program may run; taken back where it turns out that it did not."""
    profile: str = ""
    """The runtime profile that it runs in, set by the work once it is known."""
    served_by: str = ""
    """Name of this server."""
    level: IsolationLevel = IsolationLevel.NAMESPACES

    async def begin(self, lost: Callable[[], None] = _nothing) -> None:
        """When this returns its lease is bound, and what it runs may start. `lost` is called when the limiter no longer
        vouches for the lease. Raises what `Claim.confirmed` and `Claim.check` raise."""
        await self.claim.confirmed()
        self.claim.when_lost(lost)
        self.claim.check()
        self.started = True

    def failed(self, failure: SandboxFailure, **facts: Any) -> ExecutionResult:
        """The result of what its sandbox failed at."""
        self.started = failure.started
        _log.error("run %d: %s", self.number, failure)
        return self.result(Outcome.SANDBOX_ERROR, Cause.INFRA, f"{failure}.", **facts)

    def result(self, outcome: Outcome, cause: Cause, message: str, **facts: Any) -> ExecutionResult:
        """A result, with what is the same whichever way something was run."""
        return ExecutionResult(
            outcome=outcome,
            cause=cause,
            message=message,
            queue_time_s=self.queue_s,
            isolation_level=self.level,
            profile=self.profile,
            served_by=self.served_by,
            request_id=self.request.request_id,
            **facts,
        )


class Backend(Protocol):
    async def perform(self, attempt: Execution) -> ExecutionResult:
        """Does it. Nothing of it runs any more when this returns, or is cancelled."""
        ...
