"""Single programs whose last value is displayed: one cell in a box of its own, which is not kept; and which way to run
something a request takes."""

from __future__ import annotations

import logging

from executor_service.model import Cause, ExecutionResult, IsolationLevel, Outcome
from executor_service.sandbox.boxes import Boxes
from executor_service.sandbox.report import Plan, SandboxFailure
from executor_service.server.cell_run import CellRun, facts_of
from executor_service.server.family import Family
from executor_service.server.interpreter import LAPSED
from executor_service.server.plans import Planner, mounted
from executor_service.server.sessions import Sessions
from executor_service.server.work import Attempt, Work
from executor_service.server.workspace_calls import Hold
from fairbox.clock import Clock

__all__ = ["DisplayedPrograms", "Router"]


class Router:
    """A `Work` made of others."""

    def __init__(self, programs: Work, displayed: DisplayedPrograms, sessions: Sessions) -> None:
        self._programs = programs
        self._displayed = displayed
        self._sessions = sessions

    async def perform(self, attempt: Attempt) -> ExecutionResult:
        return await self._work(attempt).perform(attempt)

    def result(self, attempt: Attempt, outcome: Outcome, cause: Cause, message: str) -> ExecutionResult:
        return self._work(attempt).result(attempt, outcome, cause, message)

    def _work(self, attempt: Attempt) -> Work:
        if attempt.request.session_id:
            return self._sessions
        return self._displayed if attempt.request.display else self._programs


_log = logging.getLogger(__name__)
_ONCE = 1
"""Number of the only cell."""


class DisplayedPrograms:
    """The `Work` for requests without a session that want values displayed."""

    def __init__(
        self, boxes: Boxes, planner: Planner, hold: Hold, clock: Clock, *, name: str, level: IsolationLevel
    ) -> None:
        self._boxes = boxes
        self._planner = planner
        self._hold = hold
        self._clock = clock
        self._name = name
        self._level = level

    async def perform(self, attempt: Attempt) -> ExecutionResult:
        request = attempt.request
        with self._hold(request.workspace_id, request.limits) as workspace:
            plan = mounted(self._planner.cell_plan(request), workspace, read_only=request.workspace_read_only)
            return await self._perform(attempt, plan)

    async def _perform(self, attempt: Attempt, plan: Plan) -> ExecutionResult:
        admitted = self._clock.now()
        request, claim = attempt.request, attempt.claim
        setup_s = 0.0
        try:
            async with Family(self._boxes, plan, f"run {attempt.number}") as family:
                await claim.confirmed()
                claim.when_lost(lambda: family.kill(family.root, LAPSED))
                claim.check()
                attempt.started = True
                setup_s = self._clock.now() - admitted
                # Nothing is kept, so at its time limit it is killed and not interrupted.
                run = CellRun(family, family.root, request, request.limits, cell=_ONCE, grace_s=0.0, clock=self._clock)
                async with run:
                    end = await run.end("", attempt.observe)
        except SandboxFailure as failure:
            attempt.started = failure.started
            _log.error("run %d: %s", attempt.number, failure)
            return self.result(attempt, Outcome.SANDBOX_ERROR, Cause.INFRA, f"{failure}.")
        facts = facts_of(end, request.limits, kept=False)
        return self._result(attempt, setup_time_s=setup_s, profile=plan.profile, **facts)

    def result(self, attempt: Attempt, outcome: Outcome, cause: Cause, message: str) -> ExecutionResult:
        return self._result(attempt, outcome=outcome, cause=cause, message=message)

    def _result(self, attempt: Attempt, **facts: object) -> ExecutionResult:
        return ExecutionResult(
            queue_time_s=attempt.queue_s,
            isolation_level=self._level,
            served_by=self._name,
            request_id=attempt.request.request_id,
            **facts,  # type: ignore[arg-type]
        )
