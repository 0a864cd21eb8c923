"""Verifications: a candidate against its cases, each a run of its own.

Cases go through the queue in series, a few series of one request at a time: a series has one place and one lease, and
each case the limits of a run of its own. A verification belongs to this object and not to the call that brought it, so
a repeated request_id joins it; when the last call that waits for it is cancelled, its cases are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType

from executor_service.errors import ExecutorError
from executor_service.grading.apart import MOST_HERE, ComparedAnswer, finding_of
from executor_service.grading.checker import check_request, judge_check_run, judge_control, new_token
from executor_service.grading.model import CaseResult, PytestCase, StdioCase, Verdict, VerifyResult
from executor_service.grading.request import CheckedCase, FunctionCall, JudgeProgram, VerifyRequest
from executor_service.grading.rules import (
    PASSED,
    Judgement,
    OutputBudget,
    aggregate,
    judge_program,
    unanswered,
    without_compiler_output,
)
from executor_service.model import Cause, ExecutionResult, Outcome, RunRequest
from executor_service.runs.admission import QueueFull
from executor_service.runs.dedup import DedupTable
from executor_service.runs.flights import Flight, SingleFlight
from executor_service.runs.leases import LeaseQueueFull
from executor_service.runs.queue import Abandoned, ExecutionQueue
from executor_service.verification.callers import Caller
from executor_service.verification.cases import (
    CaseBackend,
    CheckBackend,
    FunctionBackend,
    InteractionBackend,
    ProgramBackend,
)
from executor_service.verification.grader import Grader
from executor_service.verification.series import CaseRun, Series
from fairbox.apart import read_apart
from fairbox.clock import Clock

AT_ONCE = 4
"""Series of cases of one request that are queued or run at once: more would take the queue from everybody else."""
LEAST_CALLS = 4
"""Calls of one series from which on a process that is forked for each costs less than a process for each."""
KEPT_BYTES = 32 << 20
"""Output and values of all cases of a result together; what is beyond is cut."""


CaseFollower = Callable[["CaseLog"], None]
"""Given the log when it joins, and again with each case."""


class CaseLog:
    """Results of one verification's cases, as they become known; whoever joins later finds all from the beginning."""

    def __init__(self) -> None:
        self.results: list[CaseResult] = []
        """In the order in which they became known."""
        self.followers: list[CaseFollower] = []

    def add(self, results: Sequence[CaseResult]) -> None:
        self.results += map(without_compiler_output, results)
        for follower in self.followers:
            follower(self)


class Verifier:
    """`async with Verifier(...) as verifier: result = await verifier.verify(request, fingerprint)`."""

    def __init__(
        self,
        runs: ExecutionQueue,
        grader: Grader,
        clock: Clock,
        *,
        table: DedupTable[Flight[VerifyResult], VerifyResult],
        queue_timeout_s: float,
    ) -> None:
        self._runs = runs
        self._grader = grader
        self._clock = clock
        self._once = SingleFlight(clock, table, _kept_bytes, Abandoned)
        self._queue_timeout_s = queue_timeout_s
        self._logs: dict[tuple[str, bytes], CaseLog] = {}
        """Logs of verifications that have an id and have not ended, by that and the request's fingerprint."""

    async def __aenter__(self) -> Verifier:
        await self._once.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._once.__aexit__(kind, error, trace)

    async def verify(
        self, request: VerifyRequest, fingerprint: bytes, follow: CaseFollower | None = None
    ) -> VerifyResult:
        """The result of `request`: of a new verification, or of that with the same request_id.

        `follow` is given the results of cases as they are known, from the beginning also if the verification is joined;
        nothing if it has ended. Raises FieldErrors, RunLost, and what `ExecutionQueue.execute` raises when no case
        could be started.
        """
        key = request.program.request_id, fingerprint
        log = self._logs.get(key) or CaseLog()
        run = _Cases(self._runs, self._grader, self._clock, request, self._queue_timeout_s, log)

        async def verify() -> VerifyResult:
            if key[0]:
                self._logs[key] = log
            try:
                return await run.verify()
            finally:
                self._logs.pop(key, None)

        if follow is not None:
            log.followers.append(follow)
            follow(log)
        try:
            result, known = await self._once.do(*key, verify)
        finally:
            if follow is not None:
                log.followers.remove(follow)
        return replace(result, deduplicated=known)

    def knows(self, request_id: str) -> bool:
        """Says whether a verification with this id is in flight, or has ended and is remembered."""
        return self._once.knows(request_id)


class _Cases:
    """The cases of one request."""

    def __init__(
        self,
        runs: ExecutionQueue,
        grader: Grader,
        clock: Clock,
        request: VerifyRequest,
        queue_timeout_s: float,
        log: CaseLog,
    ) -> None:
        self._runs = runs
        self._grader = grader
        self._clock = clock
        self._request = request
        self._deadline = queue_timeout_s
        self._waiting = deque(enumerate(request.cases))
        self._at_once = 1 if request.stop_on_failure else min(AT_ONCE, len(request.cases))
        self._log = log
        self._results: dict[int, list[CaseResult]] = {}
        self._budget = OutputBudget(KEPT_BYTES)
        self._trouble: Exception | None = None
        """Why no more cases can be started."""
        self._started = False
        self._not_compiled: ExecutionResult | None = None

    async def verify(self) -> VerifyResult:
        """One result per case, in order; for pytest without node id one per test."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._at_once):
                tasks.create_task(self._some())
        if self._trouble is not None and not self._started:
            raise self._trouble
        return aggregate([result for index in sorted(self._results) for result in self._results[index]])

    async def _some(self) -> None:
        """Takes cases, in series, until none waits."""
        while self._waiting:
            index, case = self._waiting.popleft()
            said = self._unneeded(case)
            self._results[index] = []
            if said is not None:
                self._settle(index, [said])
            else:
                caller = self._caller()
                first, following = self._run_of(index, case, caller), partial(self._following, caller)
                await self._series(Series(first, following, self._clock, caller))

    def _caller(self) -> Caller:
        """For the calls of one series. A workspace would go from call to call if it were forked."""
        several = self._grader.forks and len(self._request.cases) >= LEAST_CALLS * self._at_once
        return Caller(self._grader, self._request, forks=several and not self._request.program.workspace_id)

    def _unneeded(self, case: CheckedCase) -> CaseResult | None:
        """The result of a case that is not to be run."""
        if self._request.stop_on_failure and self._failed():
            return CaseResult(case.case_id, Verdict.NOT_RUN, self._cause())
        if self._not_compiled is not None:
            return _result(case.case_id, judge_program(self._not_compiled), self._not_compiled)
        return _error(case, self._trouble) if self._trouble is not None else None

    async def _series(self, series: Series) -> None:
        """Has it run, and judges what has become of its cases."""
        try:
            await self._run(lambda: self._runs.execute(self._run_request(b""), b"", work=series))
        except ExecutorError as error:  # nothing of it was run
            self._trouble = error
        for run in series.ended:
            if run.execution.outcome is Outcome.COMPILE_ERROR and run.execution.cause is Cause.POLICY:
                self._not_compiled = run.execution
            if run is not series.ended[-1] or series.unfinished is not None:  # which the queue has counted
                self._runs.tally.ended(run.execution, self._request.program.tenant)
            self._settle(run.index, self._budget.cut(await self._results_of(run)))
        if (left := series.unfinished) is not None and self._trouble is not None:
            self._settle(left.index, [_error(left.case, self._trouble)])

    def _settle(self, index: int, results: list[CaseResult]) -> None:
        self._results[index] = results
        self._log.add(results)

    def _run_of(self, index: int, case: CheckedCase, caller: Caller) -> CaseRun:
        work = self._work(case, caller)
        stdin = case.stdin if isinstance(case, StdioCase) and isinstance(work, ProgramBackend) else b""
        return CaseRun(index, case, self._run_request(stdin), work)

    def _following(self, caller: Caller, run: CaseRun) -> CaseRun | None:
        """The next case to be run in the place of `run`, which has ended: if what it says can wait to be judged."""
        outcome, cause = run.execution.outcome, run.execution.cause
        if not self._waiting or self._trouble is not None or outcome is Outcome.COMPILE_ERROR:
            return None
        if cause is Cause.INFRA:  # which another box, or another lease, may be free of
            return None
        if self._request.stop_on_failure and not self._passes(run):
            return None
        return self._run_of(*self._waiting.popleft(), caller)

    def _passes(self, run: CaseRun) -> bool:
        """Says whether that is known already."""
        if self._request.checker is not None:
            return False
        found = run.work.answer.at_sight() if run.work.answer is not None else run.work.finding
        return found is not None and found.verdict is Verdict.PASSED

    def _failed(self) -> bool:
        return any(not result.passed for results in self._results.values() for result in results)

    def _cause(self) -> Cause:
        """Cause for cases that are not run: that of the first that did not pass."""
        failed = [result for index in sorted(self._results) for result in self._results[index] if not result.passed]
        return failed[0].cause

    async def _results_of(self, run: CaseRun) -> list[CaseResult]:
        """One, or one for each test."""
        work, checker = run.work, self._request.checker
        try:
            finding = await self._compared(work.answer) if work.answer else work.finding or unanswered(run.execution)
            if finding is PASSED and checker is not None:
                assert isinstance(run.case, StdioCase)
                finding = await self._checked(checker, run.case, work.output)
        except ExecutorError as error:  # its checker was not, or what compares it
            self._trouble = error
            return [_error(run.case, error)]
        if isinstance(run.case, PytestCase) and not run.case.node_id and work.tests:
            return _tests(work.tests, finding, run.execution)
        return [_result(run.case.case_id, finding, run.execution)]

    async def _checked(self, checker: JudgeProgram, case: StdioCase, output: bytes) -> Judgement:
        """Verdict of the task's checker on an output."""
        check, said = await self._check(checker, case, output)
        if said is not None:
            return said
        return judge_control(check, (await self._check(checker, case, case.expected_stdout))[1])

    async def _compared(self, answer: ComparedAnswer) -> Judgement:
        """A large one in a run of its own, like one of a checker."""
        found = answer.at_sight()
        if found is None and answer.size <= MOST_HERE:
            found = await read_apart(answer.size, answer.judge)
        if found is not None:
            return found
        program = answer.program(self._request.program.tenant)
        return finding_of(await self._run(lambda: self._runs.execute(program, b"")))

    async def _check(
        self, checker: JudgeProgram, case: StdioCase, output: bytes
    ) -> tuple[ExecutionResult, Judgement | None]:
        """A run like any other: with a place in the queue, a lease and a sandbox of its own; and what it says."""
        token = new_token(checker)
        check = await self._run(lambda: self._runs.execute(check_request(checker, case, output, token), b""))
        return check, judge_check_run(checker, check, token)

    def _run_request(self, stdin: bytes) -> RunRequest:
        return replace(self._request.program, stdin=stdin, request_id="")

    def _work(self, case: CheckedCase, caller: Caller) -> CaseBackend:
        if isinstance(case, FunctionCall):
            return FunctionBackend(self._grader, self._request, case, caller)
        if isinstance(case, StdioCase):
            if self._request.interactor is None:
                return ProgramBackend(self._grader, self._request, case)
            return InteractionBackend(self._grader, self._request, case)
        return CheckBackend(self._grader, self._request, case)

    async def _run(self, execute: Callable[[], Awaitable[ExecutionResult]]) -> ExecutionResult:
        """A case that finds the queue full waits for a place, unless it is the first: then the request is one too many.

        Safe to repeat: what was refused by a full queue has not been started.
        """
        until = self._clock.now() + self._deadline
        while True:
            try:
                execution = await execute()
            except (QueueFull, LeaseQueueFull) as error:
                if not self._started or self._clock.now() + error.retry_after_s > until:
                    raise
                await asyncio.sleep(error.retry_after_s)
            else:
                self._started = True
                return execution


def _result(case_id: str, finding: Judgement, execution: ExecutionResult | None) -> CaseResult:
    score = 1.0 if finding.verdict is Verdict.PASSED else finding.score
    return CaseResult(case_id, finding.verdict, finding.cause, execution, finding.actual, finding.message, score)


def _error(case: CheckedCase, error: Exception) -> CaseResult:
    message = f"The case was not run: {error or type(error).__name__}"
    return CaseResult(case.case_id, Verdict.ERROR, Cause.INFRA, message=message)


def _tests(tests: Sequence[tuple[str, Judgement]], finding: Judgement, execution: ExecutionResult) -> list[CaseResult]:
    """One result per test; one more where the run did not come to its end for a reason that no test shows."""
    results = [_result(node_id, each, execution if i == 0 else None) for i, (node_id, each) in enumerate(tests)]
    whole = _result("", finding, None)
    if not whole.passed and all(result.passed for result in results):
        results.append(replace(whole, case_id="(the run)"))
    return results


def _kept_bytes(result: VerifyResult) -> int:
    said = result.compilation
    return (len(said.stdout.data) + len(said.stderr.data) if said else 0) + sum(map(_size, result.cases))


def _size(result: CaseResult) -> int:
    execution = result.execution
    output = len(execution.stdout.data) + len(execution.stderr.data) if execution else 0
    return output + len(result.actual or b"") + len(result.message) + 256
