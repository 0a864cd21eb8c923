"""Cells in a box of their own, which is not kept: single programs whose last value is displayed, and the cells of one
request; and which way to run something a request takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from executor_service.model import ExecutionResult
from executor_service.programs.plans import Hold, Planner, mounted
from executor_service.runs.backends import Backend, Execution
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Plan, SandboxFailure
from executor_service.sessions.cell_run import CellRun, facts_of
from executor_service.sessions.interpreter import LAPSED
from executor_service.sessions.interpreters import InterpreterTree
from executor_service.sessions.sessions import Sessions
from fairbox.clock import Clock


class Router:
    """A `Backend` made of others."""

    def __init__(self, programs: Backend, displayed: DisplayedPrograms, sessions: Sessions) -> None:
        self._programs = programs
        self.displayed = displayed
        self._sessions = sessions

    async def perform(self, attempt: Execution) -> ExecutionResult:
        return await self._work(attempt).perform(attempt)

    def _work(self, attempt: Execution) -> Backend:
        if attempt.request.session_id:
            return self._sessions
        return self.displayed if attempt.request.display else self._programs


_ONCE = 1
"""Number of the only cell."""
Cells = Callable[[InterpreterTree], Awaitable[dict[str, Any]]]
"""Runs the cells of one request, and returns what became of them: fields of an ExecutionResult."""


class DisplayedPrograms:
    """The `Backend` for requests without a session that want values displayed."""

    def __init__(self, boxes: SandboxPool, planner: Planner, hold: Hold, clock: Clock) -> None:
        self._boxes = boxes
        self._planner = planner
        self._hold = hold
        self._clock = clock

    async def perform(self, attempt: Execution) -> ExecutionResult:
        request = attempt.request
        with self._hold(request.workspace_id, request.tenant, request.limits) as workspace:
            plan = mounted(self._planner.cell_plan(request), workspace, read_only=request.workspace_read_only)
            return await self._in_box(attempt, plan, partial(self._program, attempt))

    async def perform_cells(self, attempt: Execution, cells: Cells) -> ExecutionResult:
        """Runs `cells`, of a request without a workspace, in an interpreter; then reads what it wants returned."""
        return await self._in_box(attempt, self._planner.notebook_plan(attempt.request), cells)

    async def _program(self, attempt: Execution, tree: InterpreterTree) -> dict[str, Any]:
        request = attempt.request
        # Nothing is kept, so at its time limit it is killed and not interrupted.
        run = CellRun(tree, tree.root, request, request.limits, cell=_ONCE, grace_s=0.0, clock=self._clock)
        async with run:
            end = await run.end("", attempt.observe)
        return facts_of(end, request.limits, kept=False)

    async def _in_box(self, attempt: Execution, plan: Plan, cells: Cells) -> ExecutionResult:
        admitted = self._clock.now()
        try:
            async with InterpreterTree(self._boxes, plan, f"run {attempt.number}") as tree:
                await attempt.begin(lambda: tree.kill(tree.root, LAPSED))
                tree.sandbox.hold_lease()
                setup_s = self._clock.now() - admitted
                facts = await cells(tree)
                if plan.return_paths:
                    facts["files"] = await tree.returned()
        except SandboxFailure as failure:
            return attempt.failed(failure)
        attempt.profile = plan.profile
        return attempt.result(setup_time_s=setup_s, **facts)
