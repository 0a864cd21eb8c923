"""Single programs: each in a sandbox of its own, which is set up while the lease is bound."""

from __future__ import annotations

import logging

from executor_service.core.verdict import judge
from executor_service.model import Cause, ExecutionResult, IsolationLevel, Outcome
from executor_service.sandbox.box import Box
from executor_service.sandbox.host import Host
from executor_service.sandbox.report import Killed, SandboxFailure
from executor_service.server.plans import plan_of, profile_of
from executor_service.server.work import Attempt
from fairbox.clock import Clock

__all__ = ["Programs"]

_log = logging.getLogger(__name__)


class Programs:
    """The `Work` for requests without a session."""

    def __init__(self, host: Host, clock: Clock, *, name: str) -> None:
        self._host = host
        self._clock = clock
        self._name = name

    async def perform(self, attempt: Attempt) -> ExecutionResult:
        admitted = self._clock.now()
        setup_s = 0.0
        claim = attempt.claim
        box = Box(self._host, plan_of(attempt.request, self._host), slot=attempt.slot, name=f"run-{attempt.number}")
        try:
            async with box:
                await claim.confirmed()
                claim.when_lost(lambda: box.kill(Killed.LAPSED))
                claim.check()
                attempt.started = True
                setup_s = self._clock.now() - admitted
                report = await box.run(attempt.observe)
        except SandboxFailure as failure:
            attempt.started = failure.started
            _log.error("run %d: %s", attempt.number, failure)
            return self._result(attempt, Outcome.SANDBOX_ERROR, Cause.INFRA, f"{failure}.", setup_time_s=setup_s)
        outcome, cause, message = judge(report, attempt.request.limits)
        return self._result(
            attempt,
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
        return self._result(attempt, outcome, cause, message)

    def _result(
        self, attempt: Attempt, outcome: Outcome, cause: Cause, message: str, **facts: object
    ) -> ExecutionResult:
        return ExecutionResult(
            outcome=outcome,
            cause=cause,
            message=message,
            queue_time_s=attempt.queue_s,
            isolation_level=IsolationLevel.NAMESPACES,
            profile=profile_of(attempt.request),
            served_by=self._name,
            request_id=attempt.request.request_id,
            **facts,  # type: ignore[arg-type]
        )
