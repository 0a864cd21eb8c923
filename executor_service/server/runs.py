"""Every run of this server, from its arrival to its result.

arrives -> [joins a run with the same request_id] -> waits for a token and a slot -> its work is done -> lease given
back -> slot free -> result. What the work is (a program in a sandbox, a cell of a session) is not known here.

Invariants: a run belongs to this object and not to the call that brought it, so a second call can join it; when the
last call that waits for a run is cancelled, the run is; nothing is left when the block is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from types import TracebackType

from executor_service.balance import Load
from executor_service.cleanup import leave
from executor_service.core.admission import Admission, AdmissionStatistics, QueueFull, Started
from executor_service.core.dedup import DedupTable, Done, Gone, Join
from executor_service.core.output import OutputLog
from executor_service.core.tally import Refusal, RunTally
from executor_service.model import Cause, ExecutionResult, Outcome, RunRequest
from executor_service.sandbox.report import Stream
from executor_service.server.leases import Claim, LeaseGate, LeaseGone, LeaseQueueFull, LeaseRefusal, LimiterDown
from executor_service.server.run_traces import record_run
from executor_service.server.work import Attempt, Turns, Work
from fairbox import logs, tracing
from fairbox.clock import Clock

__all__ = ["Abandoned", "Draining", "Follower", "QueueTimeout", "ResultGone", "Runs"]

Follower = Callable[[OutputLog], None]
"""Is called in the event loop with the output of a run so far, whenever there is more. Must not block or raise."""


class Abandoned(Exception):  # noqa: N818 - a fact about a run
    """The call that brought the run was cancelled before its program started, and another call had just joined it."""

    def __init__(self) -> None:
        super().__init__("the run was given up by its first caller before it started; ask again")


class Draining(Exception):  # noqa: N818 - a state of the server
    """The server is ending; the program was not started."""


class QueueTimeout(Exception):  # noqa: N818 - a decision
    """The request waited for as long as this server lets anybody wait; the program was not started."""


class ResultGone(Exception):  # noqa: N818 - a fact about an earlier run
    """A program with this request_id ran, and its result is no longer kept."""


_REFUSALS: dict[type[Exception], Refusal] = {
    Abandoned: Refusal.ABANDONED,
    Draining: Refusal.DRAINING,
    LeaseGone: Refusal.LEASE_LOST,
    LeaseQueueFull: Refusal.LIMITER_QUEUE_FULL,
    LeaseRefusal: Refusal.LEASE_REFUSED,
    LimiterDown: Refusal.LIMITER_DOWN,
    QueueFull: Refusal.QUEUE_FULL,
    QueueTimeout: Refusal.QUEUE_TIMEOUT,
}


@dataclass(eq=False, slots=True)
class _Run:
    request: RunRequest
    number: int
    arrived: float
    slot: asyncio.Future[int]
    work: Work
    done: asyncio.Event = field(default_factory=asyncio.Event)
    ending: ExecutionResult | Exception | None = None
    waiters: int = 0
    on_start: Callable[[], object] | None = None
    output: OutputLog = field(default_factory=OutputLog)
    followers: list[Follower] = field(default_factory=list)
    attempt: Attempt | None = None
    """Set when it has a slot and a lease."""
    task: asyncio.Task[None] | None = None
    begun: bool = False
    """The task has come to its first line. Before that it can't be cancelled: it would end without a word."""
    given_up: bool = False

    @property
    def started(self) -> bool:
        """Whether the program may have run."""
        return self.attempt is not None and self.attempt.started

    def observe(self, stream: Stream, data: bytes) -> None:
        """Takes in output as it is read."""
        self.output.append(stream, data)
        for follower in self.followers:
            follower(self.output)


class Runs:
    """`async with Runs(...) as runs: result = await runs.execute(request, fingerprint)`."""

    def __init__(
        self,
        work: Work,
        gate: LeaseGate,
        clock: Clock,
        *,
        name: str,
        admission: Admission,
        table: DedupTable[_Run, ExecutionResult],
        queue_timeout_s: float,
        turns: Turns,
        tally: RunTally | None = None,
    ) -> None:
        self._work = work
        self._gate = gate
        self._clock = clock
        self._name = name
        self._admission = admission
        self._table = table
        self._turns = turns
        self._queue_timeout_s = queue_timeout_s
        self._numbers = count(1)
        self._runs: dict[int, _Run] = {}
        self._answered = 0
        """Of those, the ones whose callers have their answer, and what ran is taken apart."""
        self._tasks = asyncio.TaskGroup()
        self.draining = False
        self.tally = tally or RunTally()
        """What became of all runs so far."""

    async def __aenter__(self) -> Runs:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.draining = True
        for run in self._runs.values():
            _cancel(run)
        await leave(self._tasks, error)

    async def execute(
        self,
        request: RunRequest,
        fingerprint: bytes,
        follow: Follower | None = None,
        work: Work | None = None,
        *,
        on_start: Callable[[], object] | None = None,
    ) -> ExecutionResult:
        """The result of `request`: of a new run, or of the run with the same request_id.

        `follow` is given the output of the run while it runs, from its beginning also where the run is joined; nothing
        where it has ended. `work` does a new run in place of the usual work. `on_start` is called when a new
        run has its slot and its lease.
        Raises Abandoned, Draining, IdReused, QueueFull, QueueTimeout, ResultGone, and what the lease gate raises.
        Cancelling it kills the program, unless another call waits for it too.
        """
        run: _Run | None = None
        if request.request_id:
            known = self._table.look_up(request.request_id, fingerprint, self._clock.now())
            if isinstance(known, Done):
                return replace(known.result, deduplicated=True)
            if isinstance(known, Gone):
                raise ResultGone
            if isinstance(known, Join):
                run = known.run
        joined = run is not None
        run = run or self._begin(request, fingerprint, work or self._work)
        if not joined:
            run.on_start = on_start
        run.waiters += 1
        if follow is not None:
            run.followers.append(follow)
            follow(run.output)
        try:
            await run.done.wait()
        finally:
            run.waiters -= 1
            if follow is not None:
                run.followers.remove(follow)
            if run.waiters == 0 and not run.done.is_set():
                _cancel(run)
        if isinstance(run.ending, ExecutionResult):
            return replace(run.ending, deduplicated=True) if joined else run.ending
        assert run.ending is not None
        logs.bind(**_facts(request))  # whoever names the error may log it
        raise run.ending

    async def drain(self, grace_s: float) -> None:
        """Takes nothing new, refuses what waits, lets what runs go on for `grace_s`, then kills it."""
        self.draining = True
        for run in self._runs.values():
            if not run.started:
                _cancel(run)
        try:
            async with asyncio.timeout(grace_s):
                for run in list(self._runs.values()):
                    await run.done.wait()
        except TimeoutError:
            for run in self._runs.values():
                _cancel(run)

    def statistics(self) -> AdmissionStatistics:
        return self._admission.statistics(self._clock.now())

    def load(self) -> Load:
        """What whoever has the next program should know: without those that are answered, and soon out of the way."""
        now = self.statistics()
        return Load(now.running - min(self._answered, now.running), now.queued, now.max_running)

    def knows(self, request_id: str) -> bool:
        """Whether a run with this id is in flight, or has ended and is remembered."""
        return bool(request_id) and self._table.knows(request_id)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Runs ended, by outcome."""
        found: Counter[Outcome] = Counter()
        for (outcome, _), number in self.tally.outcomes.items():
            found[outcome] += number
        return found

    @property
    def deduplicated_total(self) -> int:
        return self._table.deduplicated_total

    def _begin(self, request: RunRequest, fingerprint: bytes, work: Work) -> _Run:
        if self.draining:
            self.tally.refused(Refusal.DRAINING)
            raise Draining
        now = self._clock.now()
        slot = asyncio.get_running_loop().create_future()
        run = _Run(request, next(self._numbers), now, slot, work)
        # A cell may have to wait for its turn in its session; it holds no slot until then.
        eligible = not request.session_id and (request.lease is not None or not self._gate.needs_queue)
        self._runs[run.number] = run
        try:
            self._start(self._admission.enter(run.number, now, eligible=eligible))
        except BaseException as error:
            del self._runs[run.number]
            self.tally.refused(_refusal(error))
            raise
        if request.request_id:
            self._table.begin(request.request_id, fingerprint, run)
        run.task = self._tasks.create_task(self._drive(run), name=f"run {run.number}")
        return run

    async def _drive(self, run: _Run) -> None:
        """Runs it, whatever happens, to an ending that every waiting call gets."""
        ending: ExecutionResult | Exception
        run.begun = True
        try:
            if run.given_up:
                raise asyncio.CancelledError
            with logs.bound(**_facts(run.request)):
                ending = await self._in_queue(run)
        except asyncio.CancelledError:
            if run.started:
                assert run.attempt is not None
                message = "Killed: nobody waited for the result any more, or the server ended."
                ending = run.work.result(run.attempt, Outcome.CANCELLED, Cause.INFRA, message)
            else:
                ending = Draining() if self.draining else Abandoned()
        except Exception as error:  # the boundary: the service names it, waiting calls get it
            ending = error
        self._end(run, ending)
        self._answered -= 1
        del self._runs[run.number]
        self._start(self._admission.leave(run.number, self._clock.now()))

    def _end(self, run: _Run, ending: ExecutionResult | Exception) -> None:
        """Gives the ending to every waiting call; the first one stays."""
        if run.done.is_set():
            return
        run.ending = ending
        self._answered += 1
        self._settle(run, self._clock.now())
        run.done.set()

    def _settle(self, run: _Run, now: float) -> None:
        """Records the ending. An id whose program did not start is free again."""
        if isinstance(run.ending, ExecutionResult):
            self.tally.ended(run.ending, run.request.tenant)
        else:
            self.tally.refused(_refusal(run.ending))
        if tracing.enabled() and run.ending is not None:
            record_run(run.request, run.ending, now - run.arrived, name=self._name)
        if not run.request.request_id:
            return
        if run.started and isinstance(run.ending, ExecutionResult):
            result = run.ending
            size = sum(len(output.data) for output in result.outputs) + sum(len(file.content) for file in result.files)
            size += sum(len(form) for display in result.displays for form in display.data.values())
            self._table.end(run.request.request_id, result, size, now)
        else:
            self._table.abandon(run.request.request_id)

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
            queue_s = self._clock.now() - run.arrived
            run.attempt = Attempt(
                run.request,
                run.number,
                run.slot.result(),
                held,
                queue_s,
                run.observe,
                answer=lambda result: self._end(run, result),
            )
            if run.on_start is not None:
                run.on_start()
            return await run.work.perform(run.attempt)

    def _may_wait(self, run: _Run) -> bool:
        """Where nothing can make it wait, no time is set to bound the wait."""
        request = run.request
        if request.lease is not None or self._gate.needs_queue:
            return True
        if request.session_id and self._turns.taken(request.session_id):
            return True
        return not run.slot.done() and not self._admission.has_room

    async def _admitted(self, run: _Run, stack: AsyncExitStack) -> Claim:
        """Waits for the turn in its session, for its lease, and for its slot; `stack` gives the first two back."""
        request = run.request
        if request.session_id:
            await stack.enter_async_context(self._turns.turn(request))
        run_id = request.request_id or f"{self._name}/{run.number}"
        claim = self._gate.claim(request.lease, run_id=run_id, tenant=request.tenant)
        held = await stack.enter_async_context(claim)
        if not run.slot.done():
            self._start(self._admission.eligible(run.number, self._clock.now()))
        await run.slot
        return held

    def _start(self, started: list[Started]) -> None:
        for each in started:
            run = self._runs.get(each.key)  # type: ignore[call-overload]
            if run is not None and not run.slot.done():
                run.slot.set_result(each.slot)


def _refusal(error: BaseException | None) -> Refusal:
    return next((why for kind, why in _REFUSALS.items() if isinstance(error, kind)), Refusal.OTHER)


def _facts(request: RunRequest) -> dict[str, str]:
    """What is told with every record of the log that a run is the reason for."""
    lease = "" if request.lease is None else f"{request.lease.bucket}/{request.lease.epoch}.{request.lease.seq}"
    ids = {"request_id": request.request_id, "tenant": request.tenant, "session_id": request.session_id}
    return {**ids, "lease": lease}


def _cancel(run: _Run) -> None:
    run.given_up = True
    if run.begun and run.task is not None:
        run.task.cancel()
