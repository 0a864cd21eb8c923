"""Single programs: each in a sandbox of its own, which is handed over while the lease is bound."""

from __future__ import annotations

import logging

from executor_service.core.verdict import judge
from executor_service.model import Cause, ExecutionResult, IsolationLevel, Outcome
from executor_service.sandbox.boxes import Boxes
from executor_service.sandbox.report import Killed, Mode, Plan, Report, SandboxFailure
from executor_service.server.plans import Planner
from executor_service.server.work import Attempt
from fairbox.clock import Clock

__all__ = ["Programs"]

_log = logging.getLogger(__name__)


class Programs:
    """The `Work` for requests without a session."""

    def __init__(self, boxes: Boxes, planner: Planner, clock: Clock, *, name: str) -> None:
        self._boxes = boxes
        self._planner = planner
        self._clock = clock
        self._name = name

    async def perform(self, attempt: Attempt) -> ExecutionResult:
        admitted = self._clock.now()
        setup_s = 0.0
        claim = attempt.claim
        plan = self._planner.plan(attempt.request)
        answered: ExecutionResult | None = None
        try:
            async with self._boxes.take(plan) as sandbox:
                await claim.confirmed()
                claim.when_lost(lambda: sandbox.kill(Killed.LAPSED))
                claim.check()
                attempt.started = True
                setup_s = self._clock.now() - admitted
                report = await sandbox.run(attempt.observe)
                answered = self._judged(attempt, plan, report, setup_s)
                attempt.answer(answered)
        except SandboxFailure as failure:
            if answered is not None:
                raise
            attempt.started = failure.started
            _log.error("run %d: %s", attempt.number, failure)
            return self._result(attempt, plan, Outcome.SANDBOX_ERROR, Cause.INFRA, f"{failure}.", setup_time_s=setup_s)
        return answered

    def _judged(self, attempt: Attempt, plan: Plan, report: Report, setup_s: float) -> ExecutionResult:
        outcome, cause, message = judge(report, attempt.request.limits)
        return self._result(
            attempt,
            plan,
            outcome,
            cause,
            message,
            exit_code=128 + report.signal if report.signal else report.code,
            signal=report.signal,
            stdout=report.stdout,
            stderr=report.stderr,
            files=report.files,
            setup_time_s=setup_s,
            wall_time_s=report.wall_s,
            cpu_time_s=report.cpu_s,
            peak_memory_bytes=report.peak_bytes,
        )

    def result(self, attempt: Attempt, outcome: Outcome, cause: Cause, message: str) -> ExecutionResult:
        return self._result(attempt, self._planner.plan(attempt.request), outcome, cause, message)

    def _result(
        self, attempt: Attempt, plan: Plan, outcome: Outcome, cause: Cause, message: str, **facts: object
    ) -> ExecutionResult:
        return ExecutionResult(
            outcome=outcome,
            cause=cause,
            message=message,
            queue_time_s=attempt.queue_s,
            isolation_level=IsolationLevel.NAMESPACES,
            profile=plan.profile if plan.mode is Mode.MAIN else "",
            served_by=self._name,
            request_id=attempt.request.request_id,
            **facts,  # type: ignore[arg-type]
        )
