"""Which way to run something a request takes: a program, a program whose last value is displayed, or a cell."""

from __future__ import annotations

from executor_service.model import Cause, ExecutionResult, Outcome
from executor_service.server.displayed import DisplayedPrograms
from executor_service.server.sessions import Sessions
from executor_service.server.work import Attempt, Work

__all__ = ["Router"]


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
