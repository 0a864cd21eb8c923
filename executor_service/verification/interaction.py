"""A candidate and an interactor of the task: two programs whose standard streams are joined.

What one prints the server reads, and sends to the other: the two share nothing. Invariants: until both have ended, at
least one of them is charged for the time, so that no interaction lasts longer than both limits together; what was read
and not yet sent is bounded, and beyond that its writer is held up; when `join` returns, both have ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from executor_service.runs.wall_time import WallTime
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.report import Killed, Report, SandboxFailure
from fairbox.clock import Clock

_MOST_WAITING = 256 << 10
"""Bytes of one program that wait for the other to take them in."""


class Talker:
    """One of the two: what it has said that was not passed on, and the time that it may take to say something."""

    def __init__(self, sandbox: SandboxRun, clock: Clock, limit_s: float) -> None:
        self.sandbox = sandbox
        self.spoke = False
        """True once it has printed anything."""
        self.report: Report | None = None
        self.failure: SandboxFailure | None = None
        self.ended = asyncio.Event()
        self._clock = clock
        self._used_s = 0.0
        self._turn_began: float | None = clock.now()
        """None: it waits for the other, as far as can be known."""
        self._time = WallTime(clock, limit_s, sandbox.starved_s, clock.now())
        self._turn_changed = asyncio.Event()
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._spoken = asyncio.Event()

    @property
    def used_s(self) -> float:
        """Seconds for which it was charged so far."""
        return self._used_s + (0.0 if self._turn_began is None else self._clock.now() - self._turn_began)

    def take_turn(self) -> None:
        """The other has said something, or has ended."""
        if self._turn_began is None and not self.ended.is_set():
            self._turn_began = self._clock.now()
            self._turn_changed.set()

    def end_turn(self) -> None:
        """It has said something, or has ended."""
        self._used_s, self._turn_began = self.used_s, None
        self._turn_changed.set()

    async def run(self, other: Talker) -> None:
        """Runs it to its end."""

        def say(data: bytes) -> None:
            self.spoke = True
            if not other.ended.is_set():
                other.take_turn()
                self.end_turn()
            self._pieces.append(data)
            self._waiting += len(data)
            if self._waiting > _MOST_WAITING:
                self.sandbox.streams.pause(True)
            self._spoken.set()

        self.sandbox.streams.tap = say
        try:
            self.report = await self.sandbox.run()
        except SandboxFailure as failure:
            self.failure = failure
            other.sandbox.kill(Killed.NOT)
        self.end_turn()
        self.ended.set()
        self._spoken.set()
        other.take_turn()

    async def pass_on(self, other: Talker) -> None:
        """Sends what it says to the other, until it has ended, and then its end."""
        while True:
            self._spoken.clear()
            while self._pieces:
                data = self._pieces.popleft()
                await other.sandbox.feed(data)
                self._waiting -= len(data)
                if self._waiting <= _MOST_WAITING < self._waiting + len(data) and not self.ended.is_set():
                    self.sandbox.streams.pause(False)
            if self.ended.is_set() and not self._pieces:
                await other.sandbox.feed(b"")
                return
            await self._spoken.wait()

    async def keep_time(self) -> None:
        """Kills it once its time is over. To be cancelled when it has ended."""
        while True:
            self._turn_changed.clear()
            left_s = None
            if self._turn_began is not None:
                self._time.began = self._turn_began - self._used_s
                left_s = max(self._time.left_s(), 0.0) or await self._time.more_s()
                if not left_s:
                    self.sandbox.kill(Killed.WALL)
                    return
            try:
                async with asyncio.timeout(left_s):
                    await self._turn_changed.wait()
            except TimeoutError:
                pass


async def join(candidate: Talker, interactor: Talker, accepts: Callable[[int], bool]) -> bool:
    """Runs both, until both have ended; then each has a report. An interactor that does not end with an exit code that
    `accepts` ends the candidate too. True if the candidate was the first to end. Raises SandboxFailure if there is no
    report of one."""
    candidate_first = False

    async def run(one: Talker, other: Talker) -> None:
        nonlocal candidate_first
        async with asyncio.TaskGroup() as tasks:
            clock = tasks.create_task(one.keep_time())
            await one.run(other)
            clock.cancel()
        if one is candidate:
            candidate_first = not interactor.ended.is_set()
        elif one.report is not None and (one.report.signal or not accepts(one.report.code)):
            candidate.sandbox.kill(Killed.NOT)

    async with asyncio.TaskGroup() as tasks:
        for one, other in ((candidate, interactor), (interactor, candidate)):
            tasks.create_task(run(one, other))
            tasks.create_task(one.pass_on(other))
    if failure := candidate.failure or interactor.failure:
        raise failure
    return candidate_first
