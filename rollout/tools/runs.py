"""Runs programs of trajectories at the executor, each in a sandbox of its own.

Invariants: each runs under a lease where the global limit is on; what the program could not have caused is an
InfraError, after `infra_attempts`; nothing is kept from one program to the next.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from executor_service import (
    Cause,
    ExecutionResult,
    ExecutorClient,
    InvalidRequest,
    LeaseRefused,
    Limits,
    NotFound,
)
from fairbox.clock import Clock
from fairbox.errors import FairboxError
from limiter import LeaseLike
from rollout.tools.base import InfraError
from rollout.tools.executor_settings import ExecutorToolConfig
from rollout.tools.places import Places
from rollout.tools.workspaces import TrajectoryWorkspaces

__all__ = [
    "RETRY_AFTER_S",
    "BadProgram",
    "ProgramRuns",
    "Ran",
    "Runs",
    "UnboundLease",
    "call_timeout",
    "ran",
    "refused",
    "unbound_lease",
]

RETRY_AFTER_S = 0.3
"""Before the second attempt; doubled for each further one."""
_CALL_ALLOWANCE_S = 30.0
"""What setting up the sandbox and the way there and back may take beyond queue and program."""


class BadProgram(FairboxError):  # noqa: N818 - a fact about a text
    """The executor does not take this text as a program; it says what is wrong, for the model."""


class UnboundLease(InfraError):  # noqa: N818 - a fact about a lease
    """No executor could bind `lease`: nothing has run."""

    def __init__(self, message: str, lease: LeaseLike) -> None:
        super().__init__(message)
        self.lease = lease


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that ran, however it ended; its cause is not INFRA."""

    result: ExecutionResult
    wait_s: float
    """In queues: for a worker, a lease, a slot at the executor."""
    run_s: float
    fresh: bool = False
    """True when a session had to be begun anew, because the code had ended it: the model must be told."""


class Runs(Protocol):
    """Programs of trajectories, with or without state between them."""

    places: Places

    @property
    def sessions(self) -> int:
        """Sessions that are alive."""
        ...

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None: ...

    async def run(self, trajectory_id: str, code: str, timeout: float) -> Ran:
        """Raises BadProgram and InfraError."""
        ...

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None: ...

    async def release(self, trajectory_id: str) -> None: ...

    async def close(self) -> None:
        """Ends what trajectories have left."""
        ...


class ProgramRuns:
    """See the module."""

    sessions = 0

    def __init__(self, executor: ExecutorClient, places: Places, config: ExecutorToolConfig, *, clock: Clock) -> None:
        self.places = places
        self._executor = executor
        self._config = config
        self._clock = clock
        self._workspaces = TrajectoryWorkspaces(executor)

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares the workspace, where the task names one. Raises InfraError."""
        if (source := options.get("workspace")) is not None:
            await self._workspaces.open(trajectory_id, source)

    async def run(self, trajectory_id: str, code: str, timeout: float) -> Ran:
        unbound: LeaseLike | None = None
        for attempt in range(1, self._config.infra_attempts + 1):
            try:
                return await self._attempt(trajectory_id, code, timeout, unbound)
            except InfraError as error:
                if attempt == self._config.infra_attempts:
                    raise
                unbound = error.lease if isinstance(error, UnboundLease) else None
            # Again, under a new request_id and lease. Safe: a program reaches nothing outside its own sandbox, and
            # nobody has seen a result of the failed attempt.
            await asyncio.sleep(RETRY_AFTER_S * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        self._workspaces.branch(trajectory_id, branches)

    async def release(self, trajectory_id: str) -> None:
        self._workspaces.release(trajectory_id)

    async def close(self) -> None:
        """Nothing is left: programs end with their calls."""

    async def _attempt(self, trajectory_id: str, code: str, timeout: float, unbound: LeaseLike | None) -> Ran:
        """`unbound`: the lease of an attempt before, that could not be bound."""
        lease: LeaseLike | None = None
        try:
            async with self.places.take(instead_of=unbound) as place:
                lease = place.lease
                started = self._clock.now()
                workspace_id = self._workspaces.id_of(trajectory_id)
                result = await self._executor.execute(
                    code,
                    language=self._config.language,
                    limits=Limits(wall_time_s=timeout, memory_bytes=(self._config.memory_limit_mb or 0) << 20),
                    workspace_id=workspace_id,
                    workspace_read_only=bool(workspace_id) and self._config.workspace_read_only,
                    lease=place.lease,
                    request_id=uuid.uuid4().hex,
                    timeout=call_timeout(self._config, timeout),
                )
                return ran(result, wait_s=place.wait_s, run_s=self._clock.now() - started)
        except InfraError:
            raise
        except InvalidRequest as error:
            raise refused(error) from error
        except NotFound as error:
            if self._workspaces.id_of(trajectory_id):
                await self._workspaces.renew(trajectory_id)
            raise InfraError(str(error)) from error
        except FairboxError as error:
            raise unbound_lease(error, lease) or InfraError(str(error)) from error


def ran(result: ExecutionResult, *, wait_s: float, run_s: float, fresh: bool = False) -> Ran:
    """Raises InfraError for a result that the code could not have caused. `run_s` has the executor's queue in it."""
    if result.cause is Cause.INFRA:
        raise InfraError(f"the executor reports {result.outcome}: {result.message}")
    return Ran(result, wait_s + result.queue_time_s, max(0.0, run_s - result.queue_time_s), fresh)


def refused(error: InvalidRequest) -> BadProgram | InfraError:
    """The model's fault where the code is all that is wrong, and else ours."""
    if error.fields and all(field.field == "code" for field in error.fields):
        return BadProgram("; ".join(f"the code {field.problem}" for field in error.fields))
    return InfraError(str(error))


def unbound_lease(error: FairboxError, lease: LeaseLike | None) -> UnboundLease | None:
    """None: the error is another one."""
    return UnboundLease(str(error), lease) if isinstance(error, LeaseRefused) and lease is not None else None


def call_timeout(config: ExecutorToolConfig, wall_time_s: float) -> float:
    """Seconds that one call of the executor may take."""
    return wall_time_s + config.queue_timeout + _CALL_ALLOWANCE_S
