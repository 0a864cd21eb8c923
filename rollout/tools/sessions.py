"""Runs the programs of a trajectory as cells of one session of the executor, which keeps its state between them.

    none -> live, at the first cell -> (ended by its own code -> live again, and the model is told) -> released
                                    -> lost: every further cell is an InfraError

Invariants: a trajectory has at most one session, made when it first runs something; cells of a trajectory run one after
another, each under a lease of its own; a cell is sent a second time only where it is certain that it did not start; a
session that the service lost is never replaced by a fresh interpreter, because the model would be judged by answers
that it could not expect; `release` ends the session whatever was under way. A session whose end could not be told to
the executor goes when its `session_idle_ttl` is over.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from executor_service import (
    CannotBranch,
    Cause,
    ExecutionResult,
    ExecutorClient,
    InvalidRequest,
    LeaseRefused,
    Limits,
    NotFound,
    Overloaded,
    SessionBusy,
    SessionInfo,
    SessionNotFound,
)
from fairbox.clock import Clock
from fairbox.errors import FairboxError
from limiter import LeaseLike, LimiterError
from rollout.cleanup import cancelled_here
from rollout.tools.base import BranchRefused, InfraError
from rollout.tools.executor_settings import ExecutorToolConfig
from rollout.tools.places import Places
from rollout.tools.runs import RETRY_AFTER_S, Ran, call_timeout, ran, refused
from rollout.tools.workspaces import TrajectoryWorkspaces

__all__ = ["SessionRuns"]

T = TypeVar("T")

_CALL_S = 60.0
"""Making, branching or ending a session takes milliseconds; this is for machines in trouble."""
_LOST_S = 5.0
"""For ending a session that is lost already, in case that the executor is still there."""


class _NotStartedError(InfraError):
    """The service failed before the cell could start: it may be sent again. `unbound`: its lease, where no executor
    could bind it."""

    def __init__(self, message: str, unbound: LeaseLike | None = None) -> None:
        super().__init__(message)
        self.unbound = unbound


class _EndedByCodeError(Exception):
    """There is no session any more, because of what its own code did. The cell did not start."""


@dataclass(slots=True)
class _Held:
    """What is known of one trajectory."""

    trajectory_id: str
    session_id: str = ""
    """Of the session that lives, as far as it is known; empty: there is none."""
    request_id: str = ""
    """Of the session that is being made: attempts to make it share it, so that one is made."""
    cells: int = 0
    """Cells that ended in this session."""
    ended: bool = False
    """Whether its own code has ended the session before this one."""
    lost: str = ""
    """Why there is none and will be none."""
    pending: set[asyncio.Task[Any]] = field(default_factory=set)
    """Calls that make sessions, and go on where the trajectory is cancelled meanwhile."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def end(self) -> None:
        """Its own code has ended the session."""
        self.session_id, self.request_id, self.cells, self.ended = "", "", 0, True

    def lose(self, why: object) -> InfraError:
        """The service has lost the session, or may have."""
        self.lost = f"the session is lost: {why}"
        return InfraError(self.lost)


class SessionRuns:
    """See the module."""

    def __init__(self, executor: ExecutorClient, places: Places, config: ExecutorToolConfig, *, clock: Clock) -> None:
        self.places = places
        self._executor = executor
        self._config = config
        self._clock = clock
        self._workspaces = TrajectoryWorkspaces(executor)
        self._held: dict[str, _Held] = {}

    @property
    def sessions(self) -> int:
        return sum(bool(held.session_id) and not held.lost for held in self._held.values())

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares the workspace, where the task names one. The session is made when something is to be run."""
        self._held[trajectory_id] = _Held(trajectory_id)
        if (source := options.get("workspace")) is not None:
            await self._workspaces.open(trajectory_id, source)

    async def run(self, trajectory_id: str, code: str, timeout: float) -> Ran:
        """Runs the next cell. Calls that come at once run in the order in which they came."""
        held = self._held.get(trajectory_id)
        if held is None:
            raise InfraError(f"trajectory {trajectory_id} was released, or never created")
        async with held.turn:
            unbound: LeaseLike | None = None
            for attempt in range(1, self._config.infra_attempts + 1):
                try:
                    return await self._attempt(held, code, timeout, unbound)
                except _NotStartedError as error:
                    if attempt == self._config.infra_attempts:
                        raise
                    unbound = error.unbound
                # Again, under a new request_id and lease. Safe: the cell did not start, so the state is as it was.
                await asyncio.sleep(RETRY_AFTER_S * 2 ** (attempt - 1))
            raise AssertionError("the last attempt returns or raises")

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        held = self._held.get(trajectory_id) or _Held(trajectory_id)
        if held.turn.locked():
            raise BranchRefused("the session can't branch while a call runs in it")
        if held.lost:
            raise InfraError(held.lost)
        async with held.turn:
            infos = await self._fork(held, branches) if held.session_id else []
        sessions = [info.session_id for info in infos] or [""] * len(branches)
        for branch, session_id in zip(branches, sessions, strict=True):
            self._held[branch] = _Held(branch, session_id, cells=held.cells, ended=held.ended)
        self._workspaces.branch(trajectory_id, branches)

    async def release(self, trajectory_id: str) -> None:
        """Ends the session. Raises InfraError when the executor can't be told."""
        self._workspaces.release(trajectory_id)
        held = self._held.pop(trajectory_id, None)
        if held is None:
            return
        lost, held.lost = held.lost, held.lost or f"trajectory {trajectory_id} was released"
        sessions = ({held.session_id} - {""}) | await _settled(held.pending)
        try:
            for session_id in sessions:
                await self._executor.delete_session(session_id, timeout=_CALL_S if not lost else _LOST_S)
        except FairboxError as error:
            if not lost:
                raise InfraError(f"a session could not be ended: {error}") from error

    async def close(self) -> None:
        """Ends what trajectories have left."""
        await asyncio.gather(*(self.release(trajectory) for trajectory in tuple(self._held)), return_exceptions=True)

    async def _attempt(self, held: _Held, code: str, timeout: float, unbound: LeaseLike | None) -> Ran:
        began = self._clock.now()
        while True:
            # Before there is a lease: a session that rests holds none, and one that is being made would waste it.
            fresh = await self._ensure(held)
            try:
                async with self.places.take(instead_of=unbound) as place:
                    started = self._clock.now()
                    result = await self._cell(held, code, timeout, place.lease)
                    ended = self._clock.now()
                    if result.cause is Cause.INFRA:
                        raise held.lose(f"the executor reports {result.outcome}: {result.message}")
            except LimiterError as error:
                raise _NotStartedError(str(error)) from error
            except _EndedByCodeError as error:
                if fresh:
                    raise held.lose(error) from error
                held.end()
                continue
            held.cells += 1
            return ran(result, wait_s=started - began, run_s=ended - started, fresh=fresh and held.ended)

    async def _cell(self, held: _Held, code: str, timeout: float, lease: LeaseLike | None) -> ExecutionResult:
        try:
            return await self._executor.execute(
                code,
                session_id=held.session_id,
                limits=Limits(wall_time_s=timeout),
                lease=lease,
                request_id=uuid.uuid4().hex,
                timeout=call_timeout(self._config, timeout),
            )
        except SessionNotFound as error:
            if error.cause is Cause.POLICY:
                raise _EndedByCodeError(str(error)) from error
            raise held.lose(error) from error
        except InvalidRequest as error:
            raise refused(error) from error
        except LeaseRefused as error:
            raise _NotStartedError(str(error), lease) from error
        except (Overloaded, SessionBusy) as error:
            raise _NotStartedError(str(error)) from error
        except FairboxError as error:
            raise held.lose(error) from error

    async def _ensure(self, held: _Held) -> bool:
        """Makes the session where there is none. Whether nothing has run in it."""
        deadline = self._clock.now() + self._config.queue_timeout
        while not held.session_id:
            if held.lost:
                break
            held.request_id = held.request_id or uuid.uuid4().hex
            try:
                info = await self._unbroken(held, self._make(held))
                held.session_id = info.session_id
            except Overloaded as error:
                if self._clock.now() + error.retry_after_s > deadline:
                    raise _NotStartedError(f"waited for a session: {error}") from error
                await asyncio.sleep(error.retry_after_s)  # safe to ask again: none was made
            except NotFound as error:
                if self._workspaces.id_of(held.trajectory_id):
                    await self._workspaces.renew(held.trajectory_id)
                raise _NotStartedError(str(error)) from error
            except FairboxError as error:
                raise _NotStartedError(f"a session could not be made: {error}") from error
        if held.lost:
            raise InfraError(held.lost)
        return held.cells == 0

    async def _make(self, held: _Held) -> SessionInfo:
        return await self._executor.create_session(
            limits=Limits(memory_bytes=(self._config.memory_limit_mb or 0) << 20),
            idle_ttl_s=self._config.session_idle_ttl,
            workspace_id=self._workspaces.id_of(held.trajectory_id),
            owner=held.trajectory_id,
            request_id=held.request_id,
            timeout=_CALL_S,
        )

    async def _fork(self, held: _Held, branches: Sequence[str]) -> list[SessionInfo]:
        """The branches' sessions; none where the code has ended the session."""
        forking = self._executor.branch_session(held.session_id, len(branches), owners=branches, timeout=_CALL_S)
        try:
            return await self._unbroken(held, forking)
        except (CannotBranch, SessionBusy, InvalidRequest) as error:
            raise BranchRefused(str(error)) from error
        except SessionNotFound as error:
            if error.cause is not Cause.POLICY:
                raise held.lose(error) from error
            held.end()
            return []
        except FairboxError as error:
            raise InfraError(f"a session could not be branched: {error}") from error

    async def _unbroken(self, held: _Held, call: Coroutine[Any, Any, T]) -> T:
        """Awaits a call that makes sessions. Where this is cancelled, the call goes on, and `release` ends what it
        made: cancelling it would leave sessions that nobody knows of."""
        task = asyncio.create_task(call)
        held.pending.add(task)
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and not cancelled_here():
                held.pending.discard(task)


async def _settled(pending: set[asyncio.Task[Any]]) -> set[str]:
    """Ids of the sessions that calls made whose callers were cancelled. Their own deadlines bound the wait."""
    made: set[str] = set()
    for outcome in await asyncio.gather(*pending, return_exceptions=True):
        if isinstance(outcome, SessionInfo):
            made.add(outcome.session_id)
        elif isinstance(outcome, list):
            made.update(info.session_id for info in outcome)
    return made
