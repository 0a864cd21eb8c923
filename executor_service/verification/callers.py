"""Callers of a candidate's function: a process for one call alone, or one that loads it and is forked for each call.

Invariants: each call has its own time and CPU time, the first one of a process those of loading too; what a call has
left, or a limit that it met, ends the process. What a candidate's process says of itself is the candidate's claim: a
false one can spoil its own result and nothing else.
"""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple

from executor_service.grading.request import VerifyRequest
from executor_service.runs.backends import Execution
from executor_service.sandbox.report import Killed, Report
from executor_service.verification.exchange import Participant, ParticipantEnded
from executor_service.verification.grader import Grader, bind
from executor_service.verification.guest_process import GuestProcess, Head

_SHORT_S = 0.01
"""The init counts the CPU time of a call that takes longer; waking it for others would cost more than they do."""
_ENTRY: Head = {"type": "ask", "id": 1, "op": "entry", "target": 0}


class Called(NamedTuple):
    """Answer to a call: `head` is empty where there is none, and `report` says why."""

    head: Head
    blob: bytes
    report: Report
    setup_s: float


class Caller:
    """`async with Caller(...) as caller:` for calls one after the other, all in one turn of the queue."""

    def __init__(self, grader: Grader, request: VerifyRequest, *, forks: bool = False) -> None:
        """`forks`: one process loads the candidate and is forked for each call, as long as that can be done; else each
        call has a process of its own."""
        self._grader = grader
        self._request = request
        self._forks = forks
        self._stack = AsyncExitStack()
        self._worker: GuestProcess | None = None
        self._not_loaded: Called | None = None
        """Answer to every call, because it can't be loaded."""

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def ask(self, attempt: Execution, ask: bytes) -> Called:
        """Calls the entry point with the arguments in `ask`."""
        limits, clock, setup_s = self._request.program.limits, self._grader.clock, 0.0
        if self._not_loaded is not None:
            return self._not_loaded
        while self._forks:
            if self._worker is not None:
                attempt.claim.check()
            first, admitted = self._worker is None, clock.now()
            try:
                worker = self._worker or await self._take(attempt)
                setup_s += clock.now() - admitted if first else 0.0
                speaker = Participant(worker, clock, limits.wall_time_s)
                with worker.counted(limits, _SHORT_S):
                    called = await self._ask(speaker, worker, ask, first=first)
            except BaseException:
                await self._close()
                raise
            if called is not None:
                return called._replace(setup_s=setup_s)
            await self._close()
        return await self._ask_fresh(attempt, ask)

    async def _ask_fresh(self, attempt: Execution, ask: bytes) -> Called:
        """In a process for this call alone."""
        clock, blob = self._grader.clock, b""
        admitted = clock.now()
        async with self._grader.take_candidate(self._request) as worker:
            await bind(attempt, worker)
            setup_s = clock.now() - admitted
            speaker = Participant(worker, clock, self._request.program.limits.wall_time_s)
            head = await load(speaker)
            if head.get("type") == "loaded":
                try:
                    head, blob = await speaker.say(_ENTRY, ask)
                except ParticipantEnded:
                    head = {}
            return Called(head, blob, await worker.end(), setup_s)

    async def _take(self, attempt: Execution) -> GuestProcess:
        worker = await self._stack.enter_async_context(self._grader.take_candidate(self._request, forks=True))
        await bind(attempt, worker)
        self._worker = worker
        return worker

    async def _close(self) -> None:
        self._worker = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _ask(self, speaker: Participant, worker: GuestProcess, ask: bytes, *, first: bool) -> Called | None:
        """None: the call was not made, and needs another process."""
        if first:
            head = await load(speaker, forks=True, bare=self._grader.bare)
            if head.get("type") != "loaded":
                self._not_loaded = await self._last(head, b"", worker)
                return self._not_loaded
            self._forks = head.get("forks") is True
        head, blob = {}, b""
        cpu_s = math.ceil(self._request.program.limits.cpu_time_s)
        try:
            head, blob = await speaker.say(_ENTRY | {"cpu_s": cpu_s}, ask)
            if not self._forks:
                return await self._last(head, blob, worker)
            over = head if head.get("type") == "over" else (await speaker.hear())[0]
        except ParticipantEnded:
            return await self._last(head, blob, worker)
        if head.get("type") == "others" and not first:
            return None
        called = Called({} if over is head else head, blob, self._report(over, worker, speaker.used_s), 0.0)
        if over.get("clean") is True:
            return called
        # What it has left may be a reason to call its end another: the init has counted.
        final = (await self._last(head, blob, worker)).report
        report = replace(
            called.report,
            killed=final.killed,
            oom_kills=final.oom_kills,
            denied_forks=final.denied_forks,
            outside_kills=final.outside_kills,
        )
        return called._replace(report=report)

    def _report(self, said: Head, worker: GuestProcess, wall_s: float) -> Report:
        """Report of a call that is over. What `said` claims is never more than the limits allow."""
        limits, (stdout, stderr) = self._request.program.limits, worker.take_output()
        return Report(
            killed=Killed.NOT,
            code=int(_number(said, "code", 255)),
            signal=int(_number(said, "signal", 64)),
            stdout=stdout,
            stderr=stderr,
            wall_s=wall_s,
            cpu_s=_number(said, "cpu_s", limits.cpu_time_s),
            peak_bytes=int(_number(said, "peak_bytes", limits.memory_bytes)),
        )

    async def _last(self, head: Head, blob: bytes, worker: GuestProcess) -> Called:
        report = await worker.end()
        await self._close()
        return Called(head, blob, report, 0.0)


def _number(said: Head, name: str, most: float) -> float:
    value: Any = said.get(name)
    return min(max(value, 0), most) if type(value) in (int, float) else 0


async def load(speaker: Participant, *, tests: bool = False, forks: bool = False, bare: bool = False) -> Head:
    """The candidate's answer to the order to load; empty if it ended."""
    try:
        return (await speaker.say({"type": "load", "tests": tests, "forks": forks, "bare": bare}))[0]
    except ParticipantEnded:
        return {}
