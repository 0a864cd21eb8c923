"""Runs the programs of a trajectory as cells of one session of the executor, which keeps its state between them.

    none -> live, at the first cell -> (ended by its own code -> live again, and the model is told) -> released
                                    -> lost: every further cell is an InfraError

Invariants: a trajectory has at most one session, made when it first runs something; cells of a trajectory run one after
another, each under a lease of its own; a cell is sent a second time only where it is certain that it did not start; a
session that the service lost is never replaced by a fresh interpreter, because the model would be judged by answers
that it could not expect; `release` ends the session whatever was under way. A session whose end could not be told to
the executor goes when it was idle for `IDLE_TTL_S`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from executor_service import (
    CannotBranch,
    CannotSnapshot,
    Cause,
    ExecutionResult,
    InvalidRequest,
    Limits,
    NotFound,
    Overloaded,
    SessionBusy,
    SessionInfo,
    SessionNotFound,
)
from fairbox.errors import FairboxError
from limiter import LeaseLike
from rollout.cleanup import cancelled_here
from rollout.tools.base import BranchRefused, InfraError
from rollout.tools.code.client import BadProgram, CodeClient, CodeOutcome, RetryableError, Slot
from rollout.tools.code.runner import CodeRunner

T = TypeVar("T")

IDLE_TTL_S = 3600.0
"""A session that nothing has run in for so long is ended by the executor: a turn of the engine may take minutes."""
_CALL_S = 60.0
"""Making, branching or ending a session takes milliseconds; this is for machines in trouble."""
_SNAPSHOT_S = 300.0
"""A session's files may be gigabytes, which are read and written once."""
_LOST_S = 5.0
"""For ending a session that is lost already, in case that the executor is still there."""


class _EndedByCodeError(Exception):
    """There is no session any more, because of what its own code did. The cell did not start."""


@dataclass(slots=True)
class _Held:
    """State of one trajectory's session."""

    trajectory_id: str
    session_id: str = ""
    """Id of the session that lives, as far as it is known; empty if there is none."""
    request_id: str = ""
    """Id of the request that makes the session: all attempts share it, so that only one session is made."""
    cells: int = 0
    """Cells that ended in this session."""
    ended: bool = False
    """Says whether its own code has ended the session before this one."""
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


class SessionRunner(CodeRunner):
    """Cells of trajectories, each in the trajectory's session."""

    def __init__(self, client: CodeClient) -> None:
        super().__init__(client)
        self._language = "bash" if client.config.mode == "shell" else "python"
        self._held: dict[str, _Held] = {}

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares the workspace, if the task names one. The session is made when something is to be run."""
        self._held[trajectory_id] = _Held(trajectory_id)
        await super().create(trajectory_id, options)

    async def run(self, trajectory_id: str, code: str, timeout: float) -> CodeOutcome:
        """Runs the next cell. Calls that come at once run in the order in which they came."""
        held = self._held.get(trajectory_id)
        if held is None:
            raise InfraError(f"trajectory {trajectory_id} was released, or never created")
        async with held.turn:
            # A second attempt is safe: the cell did not start, so the state is as it was.
            return await self.client.attempts(lambda unbound: self._attempt(held, code, timeout, unbound))

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
        await super().branch(trajectory_id, branches)

    async def snapshot(self, trajectory_id: str) -> str | None:
        """Id of an image with the files of the trajectory's session as they are now; None: there is no session, because
        nothing has run in it, or its own code has ended it. Raises CannotSnapshot for what the code has written,
        RetryableError, and InfraError."""
        held = self._held.get(trajectory_id)
        if held is None:
            raise InfraError(f"trajectory {trajectory_id} was released, or never created")
        async with held.turn:
            if held.lost:
                raise InfraError(held.lost)
            if not held.session_id:
                return None
            try:
                snapshot = await self.client.executor.snapshot_session(held.session_id, timeout=_SNAPSHOT_S)
            except SessionNotFound as error:
                if error.cause is not Cause.POLICY:
                    raise held.lose(error) from error
                held.end()
                return None
            except CannotSnapshot:
                raise
            except FairboxError as error:
                raise RetryableError(f"a session's files could not be kept: {error}") from error
            return snapshot.image

    async def release(self, trajectory_id: str) -> None:
        """Ends the session. Raises InfraError when the executor can't be told."""
        await super().release(trajectory_id)
        held = self._held.pop(trajectory_id, None)
        if held is None:
            return
        lost, held.lost = held.lost, held.lost or f"trajectory {trajectory_id} was released"
        sessions = ({held.session_id} - {""}) | await _settled(held.pending)
        try:
            for session_id in sessions:
                await self.client.executor.delete_session(session_id, timeout=_CALL_S if not lost else _LOST_S)
        except FairboxError as error:
            if not lost:
                raise InfraError(f"a session could not be ended: {error}") from error

    async def close(self) -> None:
        await asyncio.gather(*(self.release(trajectory) for trajectory in tuple(self._held)), return_exceptions=True)

    async def _attempt(self, held: _Held, code: str, timeout: float, unbound: LeaseLike | None) -> CodeOutcome:
        client = self.client
        began = client.clock.now()
        while True:
            # Before there is a lease: a session that rests holds none, and one that is being made would waste it.
            fresh = await self._ensure(held)
            try:
                async with client.slot(unbound) as slot:
                    result = await self._cell(held, code, timeout, slot)
                    outcome = client.outcome(result, slot, began, fresh=fresh and held.ended)
            except _EndedByCodeError as error:
                if fresh:
                    raise held.lose(error) from error
                held.end()
                continue
            held.cells += 1
            return outcome

    async def _cell(self, held: _Held, code: str, timeout: float, slot: Slot) -> ExecutionResult:
        limits = Limits(wall_time_s=timeout)
        try:
            return await self.client.execute(
                code, slot, timeout, language=self._language, session_id=held.session_id, limits=limits
            )
        except (BadProgram, RetryableError):
            raise
        except SessionNotFound as error:
            if error.cause is Cause.POLICY:
                raise _EndedByCodeError(str(error)) from error
            raise held.lose(error) from error
        except (Overloaded, SessionBusy) as error:
            raise RetryableError(str(error)) from error
        except FairboxError as error:
            raise held.lose(error) from error

    async def _ensure(self, held: _Held) -> bool:
        """Makes the session where there is none. Whether nothing has run in it."""
        deadline = self.client.clock.now() + self.client.config.queue_timeout
        while not held.session_id:
            if held.lost:
                break
            held.request_id = held.request_id or uuid.uuid4().hex
            try:
                info = await self._unbroken(held, self._make(held))
                held.session_id = info.session_id
            except Overloaded as error:
                if self.client.clock.now() + error.retry_after_s > deadline:
                    raise RetryableError(f"waited for a session: {error}") from error
                await asyncio.sleep(error.retry_after_s)  # safe to ask again: none was made
            except NotFound as error:
                await self.renew_workspace(held.trajectory_id)
                raise RetryableError(str(error)) from error
            except FairboxError as error:
                raise RetryableError(f"a session could not be made: {error}") from error
        if held.lost:
            raise InfraError(held.lost)
        return held.cells == 0

    async def _make(self, held: _Held) -> SessionInfo:
        found = self.surroundings(held.trajectory_id)
        return await self.client.executor.create_session(
            language=self._language,
            limits=Limits(memory_bytes=self.memory_bytes(held.trajectory_id)),
            idle_ttl_s=IDLE_TTL_S,
            workspace_id=self.workspace_id(held.trajectory_id),
            image=found.image,
            env=found.env,
            owner=held.trajectory_id,
            request_id=held.request_id,
            timeout=_CALL_S,
        )

    async def _fork(self, held: _Held, branches: Sequence[str]) -> list[SessionInfo]:
        """The branches' sessions; none where the code has ended the session."""
        forking = self.client.executor.branch_session(held.session_id, len(branches), owners=branches, timeout=_CALL_S)
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
