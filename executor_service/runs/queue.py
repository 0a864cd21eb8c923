"""Every run of this server, from its arrival to its result.

arrives -> [joins a run with the same request_id] -> waits for a token and a slot -> its work is done -> lease given
back -> slot free -> result. What the work is (a program in a sandbox, a cell of a session) is not known here.

Invariants: a run belongs to this object and not to the call that brought it, so a second call can join it; when the
last call that waits for a run is cancelled, the run is; nothing is left when the block is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING

from executor_service.cleanup import leave
from executor_service.client.balance import Load
from executor_service.errors import DRAINING, ExecutorUnavailable, LeaseRefused, Overloaded, RunLost
from executor_service.model import Cause, ExecutionResult, IsolationLevel, Limits, Outcome, RunRequest
from executor_service.runs.admission import Admission, Memory, Place, QueueFull
from executor_service.runs.backends import Backend, Execution
from executor_service.runs.dedup import DedupTable
from executor_service.runs.flights import Flight
from executor_service.runs.leases import Claim, LeaseGate, LeaseQueueFull, LimiterDown
from executor_service.runs.output import OutputLog
from executor_service.runs.results_file import ResultsFile
from executor_service.runs.tally import Refusal, RunTally
from executor_service.sandbox.report import Stream
from executor_service.v1 import executor_pb2 as pb
from fairbox.clock import Clock
from fairbox.telemetry import logs, tracing

if TYPE_CHECKING:
    from executor_service.sessions.sessions import Sessions

_TIMEOUT_RETRY_S = 30.0
"""Advice to one who has waited in vain for minutes."""
Follower = Callable[[OutputLog], None]
"""Is called in the event loop with the output of a run so far, whenever there is more. Must not block or raise."""


class Abandoned(ExecutorUnavailable):
    """The call that brought the run was cancelled before its program started, and another call had just joined it."""

    def __init__(self) -> None:
        super().__init__("the run was given up by its first caller before it started; ask again")


class Draining(ExecutorUnavailable):
    """The server is ending; the program was not started."""

    reason = DRAINING

    def __init__(self) -> None:
        super().__init__("this executor is ending and takes no more programs")


class QueueTimeout(Overloaded):
    """The request waited for as long as this server lets anybody wait; the program was not started."""

    subject = "executor:queue_timeout_s"

    def __init__(self) -> None:
        super().__init__("the request waited for as long as queue_timeout_s allows", _TIMEOUT_RETRY_S)


_REFUSALS: dict[type[Exception], Refusal] = {
    Abandoned: Refusal.ABANDONED,
    Draining: Refusal.DRAINING,
    LeaseQueueFull: Refusal.LIMITER_QUEUE_FULL,
    LeaseRefused: Refusal.LEASE_REFUSED,
    LimiterDown: Refusal.LIMITER_DOWN,
    QueueFull: Refusal.QUEUE_FULL,
    QueueTimeout: Refusal.QUEUE_TIMEOUT,
    RunLost: Refusal.LEASE_LOST,
}


class _Run(Flight[ExecutionResult]):
    """A request in this server. `attempt` is set when it has a slot and a lease."""

    def __init__(
        self,
        request: RunRequest,
        fingerprint: bytes,
        number: int,
        place: Place,
        work: Backend,
        landed: Callable[[_Run, _Ending], None],
    ) -> None:
        super().__init__(partial(landed, self))
        self.request = request
        self.fingerprint = fingerprint
        self.number = number
        self.place = place
        self.work = work
        self.on_start: Callable[[], object] | None = None
        self.output = OutputLog()
        self.followers: list[Follower] = []
        self.attempt: Execution | None = None

    @property
    def started(self) -> bool:
        """True if the program may have run."""
        return self.attempt is not None and self.attempt.started

    @property
    def told_by_file(self) -> bool:
        """True if nothing but a file tells another life of the server that it was begun. A lease does, which is bound
        once; a session is gone with the life that made it, and what its cells did."""
        return bool(self.request.request_id) and self.request.lease is None and not self.request.session_id

    def refuse(self, refusal: QueueFull) -> None:
        """Ends it before its program starts."""
        self.land(refusal)
        self.cancel()

    def observe(self, stream: Stream, data: bytes) -> None:
        """Takes in output as it is read."""
        self.output.append(stream, data)
        for follower in self.followers:
            follower(self.output)


_Ending = ExecutionResult | Exception


class ExecutionQueue:
    """`async with Runs(...) as runs: result = await runs.execute(request, fingerprint)`."""

    def __init__(
        self,
        work: Backend,
        gate: LeaseGate,
        clock: Clock,
        *,
        name: str,
        level: IsolationLevel,
        admission: Admission,
        table: DedupTable[_Run, ExecutionResult],
        queue_timeout_s: float,
        turns: Sessions,
        size_of: Callable[[Limits], int],
        tally: RunTally | None = None,
        results: ResultsFile | None = None,
    ) -> None:
        """`size_of`: bytes of memory that a program with such limits may use. `results`: where results are kept for
        another life of the server; None: nowhere."""
        self._work = work
        self._gate = gate
        self._clock = clock
        self._name = name
        self._level = level
        self._admission = admission
        self._table = table
        self._turns = turns
        self._size_of = size_of
        self._queue_timeout_s = queue_timeout_s
        self._results = results
        self._numbers = count(1)
        self._runs: dict[int, _Run] = {}
        self._answered = 0
        """Number of those whose callers have their answer, while what ran is taken apart."""
        self._tasks = asyncio.TaskGroup()
        self.draining = False
        self.tally = tally or RunTally()
        """Counts of how all runs so far ended."""

    async def __aenter__(self) -> ExecutionQueue:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.draining = True
        for run in self._runs.values():
            run.cancel()
        await leave(self._tasks, error)

    async def execute(
        self,
        request: RunRequest,
        fingerprint: bytes,
        follow: Follower | None = None,
        work: Backend | None = None,
        *,
        on_start: Callable[[], object] | None = None,
    ) -> ExecutionResult:
        """The result of `request`: of a new run, or of the run with the same request_id.

        `follow` is given the output of the run while it runs, from its beginning also where the run is joined; nothing
        where it has ended. `work` does a new run in place of the usual work. `on_start` is called when a new
        run has its slot and its lease.
        Raises Abandoned, Draining, FieldErrors, QueueFull, QueueTimeout, RunLost, and what the lease gate raises.
        Cancelling it kills the program, unless another call waits for it too.
        """
        run, kept = self._table.look_up(request.request_id, fingerprint, self._clock.now())
        if kept is not None:
            return replace(kept, deduplicated=True)
        joined = run is not None
        if run is None:
            run = self._begin(request, fingerprint, work or self._work)
            run.on_start = on_start
        if follow is not None:
            run.followers.append(follow)
            follow(run.output)
        try:
            result = await run.wait()
        except Exception:
            logs.bind(**_facts(request))  # whoever names the error may log it
            raise
        finally:
            if follow is not None:
                run.followers.remove(follow)
        return replace(result, deduplicated=True) if joined else result

    async def drain(self, grace_s: float) -> None:
        """Takes nothing new, refuses what waits, lets what runs go on for `grace_s`, then kills it."""
        self.draining = True
        for run in self._runs.values():
            if not run.started:
                run.cancel()
        try:
            async with asyncio.timeout(grace_s):
                for run in list(self._runs.values()):
                    await run.done.wait()
        except TimeoutError:
            for run in self._runs.values():
                run.cancel()

    def statistics(self) -> pb.GetStatusResponse:
        """The part of GetStatus that is about slots, queue, memory and kept results."""
        found = self._admission.statistics(self._clock.now())
        if self._results is not None:
            found.results.CopyFrom(self._results.status())
        return found

    def load(self) -> Load:
        """Load that matters to the next program: without runs that are answered, and soon out of the way."""
        running, queued, most = self._admission.counts
        return Load(running - min(self._answered, running), queued, most)

    def knows(self, request_id: str) -> bool:
        """Says whether a run with this id is in flight, or has ended and is remembered."""
        return self._table.knows(request_id)

    @property
    def deduplicated_total(self) -> int:
        return self._table.deduplicated_total

    def _begin(self, request: RunRequest, fingerprint: bytes, work: Backend) -> _Run:
        if self.draining:
            self.tally.refused(Refusal.DRAINING)
            raise Draining
        # A cell may have to wait for its turn in its session; it holds no slot until then.
        eligible = (not request.session_id or request.beside) and (
            request.lease is not None or not self._gate.needs_queue
        )
        try:
            memory = self._turns.memory(request.session_id) or Memory(self._size_of(request.limits))
            place = self._admission.enter(self._clock.now(), eligible=eligible, tenant=request.tenant, memory=memory)
        except QueueFull:
            self.tally.refused(Refusal.QUEUE_FULL)
            raise
        run = _Run(request, fingerprint, next(self._numbers), place, work, self._landed)
        place.gives_way = run.refuse
        self._runs[run.number] = run
        self._table.begin(request.request_id, fingerprint, run)
        task = run.begin(self._tasks, lambda: self._drive(run), lambda: self._cancelled(run), f"run {run.number}")
        task.add_done_callback(lambda _: self._left(run))
        return run

    async def _drive(self, run: _Run) -> ExecutionResult:
        with logs.bound(**_facts(run.request)):
            return await self._in_queue(run)

    def _cancelled(self, run: _Run) -> _Ending:
        """Ending of a run that nobody waits for any more, or that the end of the server meets."""
        if not run.started:
            return Draining() if self.draining else Abandoned()
        assert run.attempt is not None
        message = "Killed: nobody waited for the result any more, or the server ended."
        return run.attempt.result(Outcome.CANCELLED, Cause.INFRA, message)

    def _left(self, run: _Run) -> None:
        """Nothing of it runs any more. It must not keep itself: what was sent goes with it, however large."""
        run.attempt = None
        self._answered -= 1
        del self._runs[run.number]
        self._admission.leave(run.place, self._clock.now())

    def _landed(self, run: _Run, ending: _Ending) -> None:
        """Records the ending. An id whose program did not start is free again."""
        self._answered += 1
        now, request_id = self._clock.now(), run.request.request_id
        if isinstance(ending, ExecutionResult):
            self.tally.ended(ending, run.request.tenant)
        else:
            self.tally.refused(_refusal(ending))
        if tracing.enabled():
            _record(run.request, ending, now - run.place.entered_at, name=self._name)
        if run.started and isinstance(ending, ExecutionResult):
            self._table.end(request_id, ending, ending.size, now)
            if self._results is not None and request_id:
                self._results.end(request_id, run.fingerprint, ending)
        else:
            self._table.abandon(request_id)
            if self._results is not None and run.told_by_file:
                self._results.abandon(request_id)

    async def _in_queue(self, run: _Run) -> ExecutionResult:
        async with AsyncExitStack() as stack:
            if self._may_wait(run):
                try:
                    async with asyncio.timeout(self._queue_timeout_s):
                        held = await self._admitted(run, stack)
                except TimeoutError:
                    raise QueueTimeout from None
            else:
                held = await self._admitted(run, stack)
            request, queue_s = run.request, self._clock.now() - run.place.entered_at
            run.attempt = Execution(
                request,
                run.number,
                held,
                queue_s,
                run.observe,
                answer=run.land,
                served_by=self._name,
                level=self._level,
            )
            if run.on_start is not None:
                run.on_start()
            if self._results is not None and run.told_by_file:
                await self._results.begin(request.request_id, run.fingerprint)
            result = await run.work.perform(run.attempt)
            held.failed = result.cause is Cause.INFRA
            return result

    def _may_wait(self, run: _Run) -> bool:
        """Says whether anything can make the run wait; if not, the caller sets no timeout to bound the wait."""
        request = run.request
        if request.lease is not None or self._gate.needs_queue:
            return True
        if request.session_id and not request.beside and self._turns.taken(request.session_id):
            return True
        return not run.place.started.is_set() and not self._admission.has_room(run.place.memory)

    async def _admitted(self, run: _Run, stack: AsyncExitStack) -> Claim:
        """Waits for the turn in its session, for its lease, and for its slot; `stack` gives the first two back."""
        request = run.request
        if request.session_id:
            await stack.enter_async_context(self._turns.turn(request))
        run_id = request.request_id or f"{self._name}/{run.number}"
        claim = self._gate.claim(request.lease, run_id=run_id, tenant=request.tenant)
        held = await stack.enter_async_context(claim)
        if not run.place.started.is_set():
            self._admission.eligible(run.place, self._clock.now())
        await run.place.started.wait()
        return held


def _refusal(error: BaseException | None) -> Refusal:
    return next((why for kind, why in _REFUSALS.items() if isinstance(error, kind)), Refusal.OTHER)


def _facts(request: RunRequest) -> dict[str, str]:
    """Ids that go into every log record that a run is the reason for."""
    lease = "" if request.lease is None else f"{request.lease.bucket}/{request.lease.epoch}.{request.lease.seq}"
    ids = {"request_id": request.request_id, "tenant": request.tenant, "session_id": request.session_id}
    return {**ids, "lease": lease}


def _record(request: RunRequest, ending: ExecutionResult | Exception, total_s: float, *, name: str) -> None:
    """Records the spans of a run that has just ended, below that of the call that brought it: `executor.execution`, and
    in it queue, compile, set-up, run and collect (reading outputs and files, and judging).

    They are laid one behind the other as their times in the result say, which is how a run goes. `name` is that of this
    server.
    """
    ended_at = time.time()  # once, so that the phases lie within the run to the microsecond
    facts: dict[str, tracing.Value] = {
        "request_id": request.request_id,
        "tenant": request.tenant,
        "session_id": request.session_id,
        "workspace_id": request.workspace_id,
        "language": request.language,
        "served_by": name,
    }
    if isinstance(ending, Exception):
        why = type(ending).__name__
        facts |= {"cause": Cause.INFRA, "refused": why}
        run = tracing.record("executor.execution", facts, seconds=total_s, ended_at=ended_at, why=why)
        tracing.record("executor.queue", seconds=total_s, ended_at=ended_at, parent=run)
        return
    facts |= {
        "outcome": ending.outcome,
        "cause": ending.cause,
        "queue_s": ending.queue_time_s,
        "setup_s": ending.setup_time_s,
        "wall_s": ending.wall_time_s,
        "cpu_s": ending.cpu_time_s,
        "peak_memory_bytes": ending.peak_memory_bytes,
        "profile": ending.profile,
        "isolation": ending.isolation_level,
        "cell": ending.cell,
    }
    why = ending.outcome.value if ending.cause is Cause.INFRA else ""
    run = tracing.record("executor.execution", facts, seconds=total_s, ended_at=ended_at, why=why)
    left_s = total_s
    for phase, seconds in _phases(ending):
        seconds = min(seconds, left_s)
        left_s -= seconds
        tracing.record(f"executor.{phase}", seconds=seconds, ended_at=ended_at - left_s, parent=run)
    tracing.record("executor.collect", seconds=left_s, ended_at=ended_at, parent=run)


def _phases(result: ExecutionResult) -> list[tuple[str, float]]:
    compiled = result.compilation
    phases = [("queue", result.queue_time_s)]
    if compiled is not None and not compiled.cached:
        phases.append(("compile", compiled.wall_time_s))
    return [*phases, ("setup", result.setup_time_s), ("run", result.wall_time_s)]
