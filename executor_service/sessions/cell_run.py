"""One cell in one interpreter, from the order to its end or the interpreter's.

At its wall time the cell is interrupted as by Ctrl-C, and the state stays; what does not end within the grace is killed
with its session. Invariants: when the block is left, nothing of the cell's main thread runs any more.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from functools import partial
from typing import Any

from executor_service.cleanup import to_the_end
from executor_service.model import Cause, Limits, Outcome, Output, RunRequest
from executor_service.programs.verdict import judge
from executor_service.runs.backends import Observer
from executor_service.runs.wall_time import WallTime
from executor_service.sandbox.report import Killed, Report
from executor_service.sessions.cells import CellAnswer, judge_cell, read_answer
from executor_service.sessions.interpreter import MAX_REASON, Death, Interpreter
from executor_service.sessions.interpreters import InterpreterTree
from executor_service.sessions.reasons import Ended
from fairbox.clock import Clock

_SEND_WITHIN_S = 30.0
"""An interpreter that waits takes a cell in at once; a large one with many files in a moment."""
_DEATH_WITHIN_S = 22.0
"""Seconds for a killed interpreter to die: it takes milliseconds, and `InterpreterTree.kill` sees to it by then."""
_EXIT_WITHIN_S = 2.0
"""Between the end of a channel and that of its process."""
_BETWEEN_CELLS = 1 << 20
"""Bytes kept of each stream of a session that rests, of which a server may have many."""
_ALONE = 0.5
"""Share of the grace in which the interpreter alone is interrupted; then its whole process group."""


@dataclass(frozen=True, slots=True)
class CellEnd:
    """End of a cell: it answered, or its interpreter has ended."""

    answer: CellAnswer | None
    death: Death | None
    timed_out: bool
    wall_s: float
    stdout: Output
    stderr: Output
    outside_kills: int = 0
    """Processes that the kernel killed for want of memory, of which the session had not used too much."""


class CellRun:
    """`async with CellRun(...) as run: end = await run.end()`."""

    def __init__(
        self,
        tree: InterpreterTree,
        member: Interpreter,
        request: RunRequest,
        limits: Limits,
        *,
        cell: int,
        grace_s: float,
        clock: Clock,
        of_many: bool = False,
    ) -> None:
        """`limits` are those of this cell, and not of its request, which names some of them.

        `of_many`: the caller counts its CPU time together with that of others (it calls `InterpreterTree.begin` and
        `rest`), and an exception is described in the answer and not printed.
        """
        self._tree = tree
        self._member = member
        self._request = request
        self._limits = limits
        self._cell = cell
        self._grace_s = grace_s
        self._clock = clock
        self._of_many = of_many
        self._began = 0.0
        self._sent = self._over = self._timed_out = self._output_taken = False

    async def __aenter__(self) -> CellRun:
        if not self._of_many:
            self._tree.begin(self._member, self._limits)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._output_taken:
            self._rest()  # the usual end
        else:
            await to_the_end(self._leave())

    async def end(self, name: str, observe: Observer | None = None) -> CellEnd:
        """Runs it to its end. `name` stands for its file; empty: the program's own."""
        self._member.streams.limit(self._limits.output_bytes, observe)
        await self._send(name)
        self._sent = True
        self._began = self._clock.now()
        if not await self._over_in_time():
            self._timed_out = True
            await self._stop()
        wall_s = self._clock.now() - self._began
        answer, death = self._answer(), None
        if answer is not None and self._is_doubtful(answer):
            death = await self._killed_for_memory()
        elif answer is None:
            await self._lost()
        stdout, stderr = self._taken()
        if answer is not None and death is None:
            return CellEnd(answer, None, self._timed_out, wall_s, stdout, stderr)
        death = death or self._member.gone.result()
        outside = 0 if death.ours else self._tree.sandbox.host.killed_outside(death.facts, death.signal, wall_s)
        return CellEnd(None, death, self._timed_out, wall_s, stdout, stderr, outside)

    async def _send(self, name: str) -> None:
        request, files = self._request, self._request.files
        head = {
            "type": "cell",
            "cell": self._cell,
            "name": name,
            "display": request.display,
            "told": self._of_many,
            "code_size": len(request.code),
            "stdin_size": len(request.stdin),
            "files": [{"path": file.path, "size": len(file.content), "mode": file.mode} for file in files],
            "return_paths": list(request.return_paths),
            "return_bytes": self._limits.return_bytes,
        }
        blob = b"".join((request.code, request.stdin, *(file.content for file in files)))
        try:
            await self._member.channel.send(head, blob, within_s=_SEND_WITHIN_S)
        except (OSError, TimeoutError):
            self._kill(Ended("was killed: its interpreter did not take a cell", Cause.POLICY), Killed.NOT)

    async def _over_in_time(self) -> bool:
        """Says whether it answers, or its interpreter ends, before its wall time is over."""
        waited_s = partial(self._tree.questions.starved_s, self._member)
        time = WallTime(self._clock, self._limits.wall_time_s, waited_s, self._began)
        left_s = time.limit_s
        while not await self._over_within(left_s):
            if not left_s:
                return False
            left_s = await time.more_s()
        return True

    async def _over_within(self, seconds: float) -> bool:
        """Says whether it answers, or its interpreter ends, within that time."""
        self._over = self._over or await self._member.heard(seconds)
        return self._over

    async def _stop(self) -> None:
        """Interrupts it, and kills it where that does not help."""
        if self._grace_s:
            self._tree.interrupt(self._member, group=False)
            if await self._over_within(self._grace_s * _ALONE):
                return
            self._tree.interrupt(self._member, group=True)
            if await self._over_within(self._grace_s * (1 - _ALONE)):
                return
        why = "was killed: a cell did not end when it was interrupted" if self._grace_s else "reached its time limit"
        self._kill(Ended(why, Cause.POLICY), Killed.WALL)
        await self._wait_for_death()

    def _answer(self) -> CellAnswer | None:
        """The cell's answer; None: its interpreter has ended, or is killed for what it said."""
        frame = self._member.channel.take()
        if frame is None:
            return None
        paths, most = self._request.return_paths, self._limits.return_bytes
        try:
            return read_answer(*frame, cell=self._cell, paths=paths, return_bytes=most)
        except ValueError as error:
            why = f"was killed: its interpreter answered with {error}"[:MAX_REASON]
            self._kill(Ended(why, Cause.POLICY), Killed.NOT)
            return None

    def _kill(self, why: Ended, killed: Killed) -> None:
        self._tree.kill(self._member, Death(why, killed, 0, 9))

    def _is_doubtful(self, answer: CellAnswer) -> bool:
        """Says whether it may have been above the limit of memory without that having been seen yet. Where a control
        group keeps the limit, the kernel kills one process after the other, and this answer may be about the first."""
        return answer.peak_bytes > self._limits.memory_bytes or answer.exit_code == 128 + signal.SIGKILL

    async def _killed_for_memory(self) -> Death | None:
        """Its death for what it uses still, or used; None: it was not killed for that. Where no control group keeps the
        limit, a cell that ends soon may do so between two looks of the init, which looks before it answers. Pages that
        are shared with others are in the peak, and don't count."""
        # A command beside a shell may have ended by itself already: the shell dies with it where memory is the reason.
        root = self._tree.root.gone
        whose = self._member.gone if root.done() else root
        await self._tree.questions.starved_s(self._member, _EXIT_WITHIN_S, whose)
        death = whose.result() if whose.done() else None
        return death if death is not None and death.killed is not Killed.NOT else None

    async def _lost(self) -> None:
        """Its channel ends a moment before it; where it lives on, it is of no use without."""
        why = "was killed: its interpreter sent what is no frame"
        if not self._member.channel.wrong:
            why = "was killed: its interpreter closed its channel"
            await asyncio.wait([self._member.gone], timeout=_EXIT_WITHIN_S)
        self._kill(Ended(why, Cause.POLICY), Killed.NOT)
        await self._wait_for_death()

    async def _wait_for_death(self) -> None:
        await asyncio.wait([self._member.gone], timeout=_DEATH_WITHIN_S)
        if not self._member.gone.done():
            self._member.gone.set_result(self._member.doom or Death(Ended("does not die"), failed=True, ours=True))

    def _taken(self) -> tuple[Output, Output]:
        """Output of the cell so far. Later output belongs to the next cell, and nobody sees it before that."""
        self._output_taken = True
        taken = self._member.streams.take()
        self._member.streams.limit(min(self._limits.output_bytes, _BETWEEN_CELLS), None)
        return taken

    async def _leave(self) -> None:
        if self._sent:
            if not await self._over_within(0):
                await self._stop()  # the caller has gone: what it began ends, and the state stays
            self._member.channel.take()  # what it answered is nobody's
        elif not self._member.gone.done():
            # Gone in the middle of the order: nobody can say how much of it was taken in.
            self._kill(Ended("was killed: its caller left while a cell was handed over"), Killed.NOT)
            await self._wait_for_death()
        if not self._output_taken:
            self._taken()
        self._rest()

    def _rest(self) -> None:
        if not self._of_many:
            self._tree.rest(self._member)


def facts_of(end: CellEnd, limits: Limits, *, kept: bool) -> dict[str, Any]:
    """The part of a result that says what the cell did. `kept`: it was one of a session that has others."""
    facts: dict[str, Any] = {"stdout": end.stdout, "stderr": end.stderr, "wall_time_s": end.wall_s}
    if end.answer is not None:
        answer = end.answer
        outcome, cause, code, number, message = judge_cell(answer, limits, timed_out=end.timed_out)
        facts |= {"displays": answer.displays, "files": answer.files}
        # It has not used more, as it would have been killed: a claim beyond would spoil the figures of all.
        cpu_s = min(answer.cpu_s, limits.cpu_time_s)
        facts |= {"cpu_time_s": cpu_s, "peak_memory_bytes": answer.peak_bytes}
    else:
        assert end.death is not None
        outcome, cause, code, number, message = _judge_death(end, end.death, limits, kept=kept)
    return {**facts, "outcome": outcome, "cause": cause, "exit_code": code, "signal": number, "message": message}


def _judge_death(end: CellEnd, death: Death, limits: Limits, *, kept: bool) -> tuple[Outcome, Cause, int, int, str]:
    if death.ours and death.killed is Killed.NOT:
        outcome = Outcome.SANDBOX_ERROR if death.failed else Outcome.CANCELLED
        return outcome, Cause.INFRA, 128 + 9, 9, f"The {'session' if kept else 'program'} {death.why.reason}."
    report = Report(
        death.killed,
        death.code,
        death.signal,
        end.stdout,
        end.stderr,
        wall_s=end.wall_s,
        cpu_s=death.facts.get("cpu_s", 0.0),
        oom_kills=death.facts.get("oom_kills", 0),
        denied_forks=death.facts.get("denied_forks", 0),
        outside_kills=end.outside_kills,
    )
    outcome, cause, message = judge(report, limits)
    code = 128 + death.signal if death.signal else death.code
    if kept:
        message = f"{message} The session {death.why.reason}.".strip()
    return outcome, cause, code, death.signal, message
