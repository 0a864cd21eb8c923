"""What is done once a request has its slot and its lease: the seam between the queue and the ways to run something.

`Runs` knows queues, repetitions and cancellation; a `Work` knows sandboxes. Each way to run something (programs, cells
of sessions, another service) is one `Work`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from executor_service.model import Cause, ExecutionResult, Outcome, RunRequest
from executor_service.sandbox.report import Stream
from executor_service.server.leases import Claim

__all__ = ["Attempt", "Observer", "Turns", "Work"]

Observer = Callable[[Stream, bytes], None]
"""Is called in the event loop with output as it is read, up to the output limit. Must not block or raise."""


class Turns(Protocol):
    """Whose turn it is in each session."""

    def taken(self, session_id: str) -> bool:
        """Whether one who enters now has to wait."""
        ...

    def turn(self, request: RunRequest) -> AbstractAsyncContextManager[None]:
        """Is entered before a request that names a session waits for lease and slot, and left after it has given them
        back: what waits for another cell holds neither."""
        ...


def _nobody(result: ExecutionResult) -> None:
    """Nobody waits for an early answer."""


@dataclass(eq=False, slots=True)
class Attempt:
    """One request that holds a slot and a lease."""

    request: RunRequest
    number: int
    """Unique in the life of this server."""
    slot: int
    """From 0; no other attempt of this moment has it."""
    claim: Claim
    queue_s: float
    """How long it waited for both."""
    observe: Observer | None = None
    answer: Callable[[ExecutionResult], None] = _nobody
    """May be called with the result before `perform` returns it: the caller gets it while the last of what ran is taken
    apart by the kernel. Lease and slot are given back when `perform` has returned."""
    started: bool = False
    """Set by the work, right before the program may run; taken back where it turns out that it did not."""


class Work(Protocol):
    async def perform(self, attempt: Attempt) -> ExecutionResult:
        """Does it. Nothing of it runs any more when this returns, or is cancelled."""
        ...

    def result(self, attempt: Attempt, outcome: Outcome, cause: Cause, message: str) -> ExecutionResult:
        """A result that has no output, for an attempt whose end `perform` did not see."""
        ...
