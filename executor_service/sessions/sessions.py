"""Live sessions: made, branched, given cells to run, and ended when nobody wants them any more.

Invariants: a cell holds a slot and a lease, a session that rests holds none; one cell of a session runs at a time; when
the block is left, no interpreter is alive.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import TracebackType

from executor_service.cleanup import leave
from executor_service.errors import CannotBranch, ExecutorUnavailable
from executor_service.images.table import Images
from executor_service.model import ExecutionResult, Limits, RunRequest, SessionInfo
from executor_service.programs.plans import Hold, Planner, mounted
from executor_service.programs.programs import no_user
from executor_service.runs.admission import Memory
from executor_service.runs.backends import Execution
from executor_service.runs.queue import Draining
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Plan, SandboxFailure
from executor_service.sessions.cell_run import CellRun, facts_of
from executor_service.sessions.commands import limits_of, perform_beside, turn_beside
from executor_service.sessions.interpreter import LAPSED, Death, Interpreter
from executor_service.sessions.interpreters import InterpreterTree
from executor_service.sessions.memory import SessionMemory
from executor_service.sessions.reasons import Ended
from executor_service.sessions.table import LiveSession, SessionTable
from executor_service.wire.sessions import SessionRequest
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors

_log = logging.getLogger(__name__)
_GAVE_WAY = Ended("gave way to another tenant's: its own had more than its share of max_sessions")
_SHELL = "bash"
"""Language of the sessions that are shells."""
_DYING_S = 5.0
"""Killed interpreters are gone within milliseconds; whoever has their room need not wait for one that hangs."""
_SWEEP_S = 1.0
"""Between two looks at who has been idle for too long."""


class Sessions:
    """The `Backend` for cells. `async with Sessions(...) as sessions: ...`."""

    def __init__(
        self,
        boxes: SandboxPool,
        planner: Planner,
        hold: Hold,
        clock: Clock,
        *,
        images: Images,
        memory: SessionMemory,
        table: SessionTable,
        grace_s: float,
        name: str,
    ) -> None:
        self._boxes = boxes
        self._planner = planner
        self._hold = hold
        self._clock = clock
        self._images = images
        self._memory = memory
        self.table = table
        self._grace_s, self._name = grace_s, name
        self._tasks = asyncio.TaskGroup()
        self._sweeper: asyncio.Task[None] | None = None
        self.draining = False

    async def __aenter__(self) -> Sessions:
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.create_task(self._sweep(), name="sessions")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.draining = True
        assert self._sweeper is not None
        self._sweeper.cancel()
        for session in tuple(self.table.live.values()):
            self._end(session, Ended("ended with its server"))
        await leave(self._tasks, error)

    async def create(self, request: SessionRequest) -> SessionInfo:
        """Raises TooManySessions, ExecutorUnavailable, Draining, FieldErrors for an image without a shell, and what
        holding its workspace or image raises."""
        if self.draining:
            raise Draining
        ends = self.table.reserve(1, request.tenant)
        session_id = self._new_id()
        opened: asyncio.Future[InterpreterTree] = asyncio.get_running_loop().create_future()
        profile = "" if request.language == _SHELL else request.profile or self._planner.session_profile()
        try:
            await self._make_room(*ends)
            self._tasks.create_task(self._keep(request, profile, session_id, opened), name=session_id)
            tree = await opened
        except BaseException as error:
            self.table.release(1, request.tenant)
            if isinstance(error, SandboxFailure):
                if error.stage == "user":
                    raise no_user(request.user, f"image {request.image!r}", error) from None
                if request.image and error.stage == "exec":
                    lacking = f"is {request.image!r}, in which no shell can be started: {error}"
                    raise FieldErrors([FieldError("image", lacking)]) from None
                _log.error("a session could not be made: %s", error)
                raise ExecutorUnavailable(f"the session could not be made: {error}") from None
            raise
        info = SessionInfo(
            session_id,
            owner=request.owner,
            tenant=request.tenant,
            language=request.language,
            profile=profile,
            idle_ttl_s=request.idle_ttl_s,
            served_by=self._name,
            workspace_id=request.workspace_id,
            image=request.image,
        )
        return self._add(info, request.limits, tree, tree.root)

    async def branch(self, session_id: str, count: int, owners: Sequence[str]) -> tuple[SessionInfo, ...]:
        """Forks it `count` times; `owners`: one for each branch, or none. Raises SessionNotFound, SessionBusy,
        CannotBranch, TooManySessions and Draining."""
        if self.draining:
            raise Draining
        parent = self.table.find(session_id)
        if parent.info.language == _SHELL:
            raise CannotBranch(f"session {session_id!r} can't branch: it is a shell")
        parent.enter_at_once()
        try:
            tenant = parent.info.tenant
            ends = self.table.reserve(count, tenant)
            ids = [self._new_id() for _ in range(count)]
            try:
                await self._make_room(*ends)
                with self._running(parent):
                    members = await parent.tree.branch(parent.member, ids)
            except BaseException:
                self.table.release(count, tenant)
                raise
            like = replace(parent.seen(), parent_session_id=session_id)
            made = []
            for member, owner in zip(members, owners or [""] * count, strict=True):
                info = replace(like, session_id=member.session_id, owner=owner)
                made.append(self._add(info, parent.limits, parent.tree, member))
            return tuple(made)
        finally:
            parent.leave()

    async def delete(self, session_id: str) -> bool:
        """Returns when nothing of it runs any more. False: there is no such session."""
        session = self.table.live.get(session_id)
        if session is None:
            return False
        self._end(session, Ended("was deleted"))
        await asyncio.wait([session.member.gone])
        return True

    def discard(self, made: tuple[SessionInfo, ...]) -> None:
        """Ends sessions that nobody knows of."""
        for info in made:
            if session := self.table.live.get(info.session_id):
                self._end(session, Ended("was given up by its creator"))

    def memory(self, session_id: str) -> Memory | None:
        """Memory that a live session's cells use; None: there is no such session."""
        session = self.table.live.get(session_id)
        return self._memory.of(session.tree) if session is not None else None

    def taken(self, session_id: str) -> bool:
        """Says whether a cell that enters now has to wait. False for a session that does not live."""
        session = self.table.live.get(session_id)
        return session is not None and session.busy

    @asynccontextmanager
    async def turn(self, request: RunRequest) -> AsyncIterator[None]:
        """Waits until the cells before it have ended. Raises SessionNotFound, SessionBusy and FieldErrors."""
        session = self.table.find(request.session_id)
        held = session.info.workspace_id
        if request.workspace_id not in ("", held):
            allowed = f"empty or the session's, {held!r}" if held else "empty: the session has none"
            raise FieldErrors([FieldError("workspace_id", f"is {request.workspace_id!r}, must be {allowed}")])
        if request.beside:
            with turn_beside(session, request):
                yield
            return
        await session.enter()
        try:
            yield
        finally:
            session.leave()

    async def perform(self, attempt: Execution) -> ExecutionResult:
        admitted = self._clock.now()
        session = self.table.find(attempt.request.session_id)
        if attempt.request.beside:
            with self._running(session):
                return await perform_beside(attempt, session, self.table, self._clock)
        tree, member = session.tree, session.member
        limits = limits_of(attempt.request.limits, session.limits)
        await attempt.begin(lambda: tree.kill(member, LAPSED))
        self.table.find(session.info.session_id)  # it may have ended meanwhile
        session.cells += 1
        cell = session.cells
        run = CellRun(tree, member, attempt.request, limits, cell=cell, grace_s=self._grace_s, clock=self._clock)
        tree.sandbox.hold_lease()
        try:
            with self._running(session):
                async with run:
                    setup_s = self._clock.now() - admitted
                    end = await run.end(f"<cell {cell}>", attempt.observe)
        finally:
            tree.sandbox.drop_lease()
        if end.answer is not None:
            session.memory_bytes = end.answer.resident_bytes
        facts = facts_of(end, limits, kept=True)
        attempt.profile = session.info.profile
        return attempt.result(setup_time_s=setup_s, cell=cell, **facts)

    def _new_id(self) -> str:
        return self.table.session_id(secrets.token_urlsafe(16))

    def _add(self, info: SessionInfo, limits: Limits, tree: InterpreterTree, member: Interpreter) -> SessionInfo:
        session = self.table.add(info, limits, tree, member)
        member.gone.add_done_callback(lambda gone: self.table.end(info.session_id, gone.result().why))
        return session.seen()

    def _end(self, session: LiveSession, why: Ended) -> None:
        """Kills it; it is unknown from now on."""
        session.tree.kill(session.member, Death(why, ours=True))
        self.table.end(session.info.session_id, why)

    async def _make_room(self, giving_way: list[LiveSession], ends: list[asyncio.Future[LiveSession]]) -> None:
        """Ends those at once, waits for the ends of others, which the limits of their cells bound, and returns when
        nothing of them runs any more, or they take too long to die. Raises Draining."""
        for session in giving_way:
            self._end(session, _GAVE_WAY)
        if ends:
            ended = await asyncio.gather(*ends)
            await asyncio.wait([session.member.gone for session in ended], timeout=_DYING_S)
            if self.draining:
                raise Draining

    @contextmanager
    def _running(self, session: LiveSession) -> Iterator[None]:
        """The session is not ended for another tenant in the block, and after it if it has to be."""
        session.running += 1
        try:
            yield
        finally:
            session.running -= 1
            if not session.running and self.table.owes(session.info.tenant) and not session.member.gone.done():
                self._end(session, _GAVE_WAY)

    async def _keep(
        self, request: SessionRequest, profile: str, session_id: str, opened: asyncio.Future[InterpreterTree]
    ) -> None:
        """The life of a tree, from its first interpreter to its last; its workspace stays for as long."""
        try:
            async with self._planned(request, profile) as plan, InterpreterTree(self._boxes, plan, session_id) as tree:
                if opened.cancelled():
                    return
                with self._memory.counted(tree, request.limits):
                    opened.set_result(tree)
                    await tree.over()
        except Exception as error:  # the boundary: one tree's trouble is not that of the others
            if not opened.done():
                opened.set_exception(error)
            else:
                _log.exception("a session ended badly")

    @asynccontextmanager
    async def _planned(self, request: SessionRequest, profile: str) -> AsyncIterator[Plan]:
        """Plan that it is started with; its workspace, or its image, is held for the block."""
        if request.image:
            async with self._images.hold(request.image, request.tenant) as image:
                yield self._planner.shell_plan(request, image)
            return
        with self._hold(request.workspace_id, request.tenant, request.limits) as workspace:
            if request.language == _SHELL:
                yield mounted(self._planner.shell_plan(request, None), workspace)
            else:
                branching = replace(workspace, branches=True) if workspace else None
                yield mounted(self._planner.session_plan(request, profile), branching)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            for session in self.table.expired():
                self._end(session, Ended(f"was deleted after {session.info.idle_ttl_s:g} s without a cell"))
