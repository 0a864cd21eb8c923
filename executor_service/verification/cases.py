"""One case of a verification as a `Backend`: what is done once it has its slot and its lease.

A fresh worker for each case, and two that share nothing where there is a checker: no case can leave anything for the
next. Invariants: expected values and tests never enter the candidate's sandbox; the finding is made here, from what the
candidate answered (plain data) or from what the checker said on its own channel.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace

from executor_service.grading.apart import ComparedAnswer
from executor_service.grading.checker import interactor_request, judge_interactor_run, judge_not_built
from executor_service.grading.conventions import OUTPUT, accepts
from executor_service.grading.model import AssertCase, PytestCase, StdioCase, Verdict, VerifyStyle
from executor_service.grading.request import FunctionCall, VerifyRequest
from executor_service.grading.rules import (
    PASSED,
    Judgement,
    Status,
    judge_check,
    judge_interaction,
    judge_program,
    unanswered,
)
from executor_service.model import Cause, ExecutionResult, Outcome
from executor_service.programs.programs import judged
from executor_service.programs.verdict import judge
from executor_service.runs.backends import Execution
from executor_service.sandbox.report import Killed, Report, SandboxFailure
from executor_service.verification.callers import Caller, load
from executor_service.verification.exchange import Exchange, Participant, ParticipantEnded, Test
from executor_service.verification.grader import Grader, bind
from executor_service.verification.guest_process import GuestProcess, Head
from executor_service.verification.interaction import Talker, join

_log = logging.getLogger(__name__)
CHECKER_EXTRA_S = 30.0
"""Seconds for the checker beyond the candidate's limit: it may have to load pytest and the libraries of the tests."""


class CaseBackend:
    """When `perform` has returned, there is a `finding`, or an `answer` to be compared."""

    answer: ComparedAnswer | None = None
    output = b""
    """For a checker, if what was found is that the candidate passes."""
    tests: Sequence[tuple[str, Judgement]] = ()
    """For pytest: node id and finding of each test that ended."""

    def __init__(self, grader: Grader, request: VerifyRequest) -> None:
        self.grader = grader
        self.request = request
        self.finding: Judgement | None = None

    async def perform(self, attempt: Execution) -> ExecutionResult:
        attempt.profile = self.grader.profile_for(self.request.program.code)
        try:
            return await self._perform(attempt)
        except SandboxFailure as failure:
            attempt.started = failure.started
            _log.error("case %d: %s", attempt.number, failure)
            result = attempt.result(Outcome.SANDBOX_ERROR, Cause.INFRA, f"{failure}.")
            self.finding = unanswered(result)
            return result

    async def _perform(self, attempt: Execution) -> ExecutionResult:
        raise NotImplementedError

    def _answered(self, attempt: Execution, report: Report, setup_s: float, *, code: int = 0) -> ExecutionResult:
        """For a candidate that has answered, and was ended because nothing more was wanted of it."""
        outcome = Outcome.NONZERO_EXIT if code else Outcome.FINISHED
        base = attempt.result(outcome, Cause.POLICY, "")
        return replace(_with_report(base, report, setup_s), exit_code=code, signal=0)

    def _unanswered(self, attempt: Execution, report: Report, setup_s: float) -> ExecutionResult:
        """For a candidate that ended, or was killed, without an answer."""
        outcome, cause, message = judge(report, self.request.program.limits)
        return _with_report(attempt.result(outcome, cause, message), report, setup_s)

    def _failed(self, attempt: Execution, head: Head, report: Report, setup_s: float) -> ExecutionResult:
        """For a candidate that raised an exception, as `head` says, or did not answer: sets the finding too."""
        if head.get("type") in ("answer", "raised"):
            said = f"The candidate raised {str(head.get('error'))[:1000]}"
            self.finding = Judgement(Verdict.FAILED, Cause.POLICY, said)
            return self._answered(attempt, report, setup_s, code=1)
        result = self._unanswered(attempt, report, setup_s)
        self.finding = unanswered(result)
        return result


def _with_report(result: ExecutionResult, report: Report, setup_s: float) -> ExecutionResult:
    return replace(
        result,
        exit_code=128 + report.signal if report.signal else report.code,
        signal=report.signal,
        stdout=report.stdout,
        stderr=report.stderr,
        setup_time_s=setup_s,
        wall_time_s=report.wall_s,
        cpu_time_s=report.cpu_s,
        peak_memory_bytes=report.peak_bytes,
    )


class ProgramBackend(CaseBackend):
    """The candidate is a program, which has its input and prints."""

    def __init__(self, grader: Grader, request: VerifyRequest, case: StdioCase) -> None:
        super().__init__(grader, request)
        self._case = case

    async def perform(self, attempt: Execution) -> ExecutionResult:
        result = await self.grader.programs.perform(attempt)
        self.finding, self.output = judge_program(result), result.stdout.data
        if self.finding is PASSED and self.request.checker is None:
            case, request = self._case, self.request
            self.answer = ComparedAnswer(
                case.expected_stdout,
                self.output,
                request.comparison,
                request.tolerance,
                alternatives=case.alternatives,
            )
        return result


class FunctionBackend(CaseBackend):
    """The server calls the candidate's function. What comes back is `answer`, which is left to be compared."""

    def __init__(self, grader: Grader, request: VerifyRequest, case: FunctionCall, caller: Caller) -> None:
        super().__init__(grader, request)
        self._case = case
        self._caller = caller

    async def _perform(self, attempt: Execution) -> ExecutionResult:
        head, blob, report, setup_s = await self._caller.ask(attempt, self._case.ask)
        if head.get("type") == "answer" and head.get("ok") is True:
            case, request = self._case, self.request
            self.answer = ComparedAnswer(
                case.expected,
                blob,
                request.comparison,
                request.tolerance,
                is_value=True,
                tuples_are_lists=case.tuples_are_lists,
            )
            return self._answered(attempt, report, setup_s)
        return self._failed(attempt, head, report, setup_s)


class CheckBackend(CaseBackend):
    """A checker runs assertions or tests; what it asks the candidate for goes through the server."""

    def __init__(self, grader: Grader, request: VerifyRequest, case: AssertCase | PytestCase) -> None:
        super().__init__(grader, request)
        self._case = case

    async def _perform(self, attempt: Execution) -> ExecutionResult:
        admitted = self.grader.clock.now()
        async with (
            self.grader.take_checker(self.request) as checker,
            self.grader.take_candidate(self.request) as candidate,
        ):
            await bind(attempt, candidate, checker)
            return await self._talk(attempt, candidate, checker, self.grader.clock.now() - admitted)

    async def _talk(
        self, attempt: Execution, candidate: GuestProcess, checker: GuestProcess, setup_s: float
    ) -> ExecutionResult:
        clock, limit_s = self.grader.clock, self.request.program.limits.wall_time_s
        speaker = Participant(candidate, clock, limit_s)
        head = await load(speaker, tests=True)
        if head.get("type") != "loaded":
            return self._failed(attempt, head, await candidate.end(), setup_s)
        dialogue = Exchange(speaker, Participant(checker, clock, limit_s + CHECKER_EXTRA_S))
        try:
            verdict: Test | None = await dialogue.check(self._question())
        except ParticipantEnded:
            verdict = None
        checked = await checker.end()
        report = await candidate.end()
        result = self._answered(attempt, report, setup_s)
        taken_away = report.killed in (Killed.LAPSED, Killed.OUTPUT)  # it may have answered all that it was asked
        if dialogue.gone or taken_away:
            result = self._unanswered(attempt, report, setup_s)
        result = replace(result, wall_time_s=speaker.used_s)
        self._find(dialogue, verdict, result, checked)
        return result

    def _question(self) -> bytes:
        case, request = self._case, self.request
        question = {
            "style": "pytest" if request.style is VerifyStyle.PYTEST else "assert",
            "setup": request.setup_code,
            "source": case.source if isinstance(case, AssertCase) else "",
            "node_id": case.node_id if isinstance(case, PytestCase) else "",
        }
        return json.dumps(question).encode()

    def _find(self, dialogue: Exchange, verdict: Test | None, result: ExecutionResult, checked: Report) -> None:
        """Sets the finding of the case, and of each test."""
        if result.cause is Cause.INFRA:
            self.finding = unanswered(result)
            return
        gone = f"The candidate could not answer: {result.message or 'its process had ended'}" if dialogue.gone else ""
        self.tests = [
            (test.node_id, judge_check(test.status, test.message, asked=asked, gone=gone if was_gone else ""))
            for test, asked, was_gone in dialogue.tests
        ]
        if verdict is None:
            outcome, cause, message = judge(checked, self.grader.checker(self.request).limits)
            if cause is Cause.INFRA:
                self.finding = Judgement(Verdict.ERROR, cause, message)
                return
            # A slow check can be the doing of a candidate that has not been asked yet: it runs on the same machine.
            # What the check itself prints is the doing of nobody else.
            asked = dialogue.asked + (checked.killed not in (Killed.NOT, Killed.OUTPUT))
            said = f"The check ended without a verdict ({outcome}). {message}".strip()
            self.finding = judge_check(Status.FAILED, said, asked=asked, gone=gone)
            return
        # A test of pytest may be about something else; an assertion that is not is a mistake, such as a function
        # that nothing calls.
        must_ask = isinstance(self._case, AssertCase)
        said = verdict.message
        self.finding = judge_check(verdict.status, said, asked=dialogue.asked, gone=gone, must_ask=must_ask)


class InteractionBackend(CaseBackend):
    """The candidate talks with an interactor of the task, which decides."""

    def __init__(self, grader: Grader, request: VerifyRequest, case: StdioCase) -> None:
        super().__init__(grader, request)
        assert request.interactor is not None
        self._judge = request.interactor
        self._interactor = interactor_request(request.interactor, case)

    async def _perform(self, attempt: Execution) -> ExecutionResult:
        programs, admitted = self.grader.programs, self.grader.clock.now()
        judge_attempt = replace(attempt, request=self._interactor)
        built = await programs.build(attempt)
        if isinstance(built, ExecutionResult):
            self.finding = judge_program(built)
            return built
        judge_built = await programs.build(judge_attempt)
        if isinstance(judge_built, ExecutionResult):
            self.finding = judge_not_built("interactor", judge_built)
            return attempt.result(judge_built.outcome, self.finding.cause, self.finding.message)
        compiled_s = built[1] + judge_built[1]
        async with (
            programs.take(attempt.request, built[0], talks=True) as sandbox,
            programs.take(self._interactor, judge_built[0], talks=True) as judge_sandbox,
        ):
            await bind(attempt, sandbox, judge_sandbox)
            setup_s = self.grader.clock.now() - admitted - compiled_s
            limit_s = attempt.request.limits.wall_time_s
            candidate = Talker(sandbox, self.grader.clock, limit_s)
            # It is charged for its waiting too, where the candidate has said a part of what it waits for.
            extra_s = self._interactor.limits.wall_time_s
            interactor = Talker(judge_sandbox, self.grader.clock, limit_s + extra_s)
            candidate_first = await join(candidate, interactor, lambda code: accepts(self._judge, code))
        assert candidate.report is not None
        assert interactor.report is not None
        facts = {"compilation": built[0].compilation, "setup_time_s": setup_s}
        result = judged(attempt, replace(candidate.report, wall_s=candidate.used_s), **facts)
        decided = judged(judge_attempt, interactor.report)
        verdict = judge_interactor_run(self._judge, decided)
        accepted = not interactor.report.signal and accepts(self._judge, interactor.report.code)
        if not candidate_first and not accepted and candidate.report.killed is Killed.NOT:
            result = replace(result, outcome=Outcome.FINISHED, message="", exit_code=0, signal=0)  # it was ended
        self.finding = judge_interaction(
            result, decided, verdict, candidate_first=candidate_first, spoke=candidate.spoke
        )
        self.output = next((file.content for file in decided.files if file.path == OUTPUT), b"")
        return result
