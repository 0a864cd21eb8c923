"""Messages between the server, a candidate and a checker, and the time that the latter two may each take.

Those two never share a channel: the server takes a frame from the one and passes it on to the other, and it alone hears
the verdict. The server charges each for the time that it spends answering, and for nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from executor_service.runs.wall_time import WallTime
from executor_service.sandbox.report import Killed
from executor_service.verification.guest_process import GuestProcess, Head
from fairbox.clock import Clock

Frame = tuple[Head, bytes]
_MAX_TESTS = 10_000
"""Tests of one pytest case."""
_MAX_MESSAGE, _MAX_NODE_ID = 2000, 500
"""Characters that are kept of what a checker says."""


class ParticipantEnded(Exception):
    """The side that was asked has ended, or was killed because its time was over."""


class Participant:
    """One side: a worker and the time that it may take (seconds)."""

    def __init__(self, worker: GuestProcess, clock: Clock, time_s: float) -> None:
        self._worker = worker
        self._clock = clock
        self._time = WallTime(clock, time_s, worker.starved_s, clock.now())
        self.used_s = 0.0
        """Seconds this side has spent answering so far."""

    async def say(self, head: Head, blob: bytes = b"") -> Frame:
        """Gives it the word, and returns what it answers. Raises Ended."""
        return await self._within(head, blob)

    async def hear(self) -> Frame:
        """Returns what else it has to say. Raises Ended."""
        return await self._within(None, b"")

    async def _within(self, head: Head | None, blob: bytes) -> Frame:
        began = self._clock.now()
        self._time.began = began - self.used_s
        try:
            frame = await self._exchange(head, blob)
        except TimeoutError:
            self._worker.kill(Killed.WALL)
            raise ParticipantEnded from None
        finally:
            self.used_s += self._clock.now() - began
        if frame is None:
            raise ParticipantEnded
        return frame

    async def _exchange(self, head: Head | None, blob: bytes) -> Frame | None:
        """TimeoutError when its time is over; what it waited for a processor is not charged."""
        left_s, sent = max(self._time.left_s(), 0), head is None
        while True:
            try:
                async with asyncio.timeout(left_s):
                    if head is not None and not sent:
                        await self._worker.send(head, blob)
                        sent = True
                    return await self._worker.receive()
            except TimeoutError:
                if not sent:
                    raise  # a part of it may have been sent
            if not (left_s := await self._time.more_s()):
                raise TimeoutError


@dataclass(frozen=True, slots=True)
class Test:
    """The checker's report on one test, or on all: then without an id."""

    node_id: str
    status: str
    message: str


@dataclass
class Exchange:
    """A candidate and a checker."""

    candidate: Participant
    checker: Participant
    asked: int = 0
    """Number of times that the checker has asked the candidate."""
    gone: bool = False
    """The candidate was asked and did not answer."""
    tests: list[tuple[Test, int, bool]] = field(default_factory=list)
    """Each with `asked` and `gone` at its end."""

    async def check(self, blob: bytes) -> Test:
        """The checker's verdict. Raises Ended where the checker comes to none."""
        head, blob = await self.checker.say({"type": "check"}, blob)
        while True:
            match head.get("type"):
                case "verdict":
                    return _test(head, blob)
                case "test" if len(self.tests) < _MAX_TESTS:
                    self.tests.append((_test(head, blob), self.asked, self.gone))
                    head, blob = await self.checker.say({"type": "on"})
                case "ask" | "answer":
                    head, blob = await self.checker.say(*await self._ask(head, blob))
                case _:
                    raise ParticipantEnded

    async def _ask(self, head: Head, blob: bytes) -> Frame:
        """The candidate's answer to what the checker said."""
        self.asked += 1
        if not self.gone:
            try:
                said, answer = await self.candidate.say(_passed_on(head), blob)
            except ParticipantEnded:
                said, answer = {}, b""
            if said.get("type") in ("ask", "answer"):
                return _passed_on(said), answer
            self.gone = True
        return {"type": "gone", "reason": "the candidate has ended"}, b""


def _passed_on(head: Head) -> Head:
    """The parts of a frame that one side may tell the other."""
    kinds: dict[str, type] = {"type": str, "id": int, "op": str, "target": int, "ok": bool}
    return {name: value for name, value in head.items() if name in kinds and type(value) is kinds[name]}


def _test(head: Head, blob: bytes) -> Test:
    size = head.get("name")
    name = size if type(size) is int and size >= 0 else 0
    node_id, message = blob[:name], blob[name:]
    return Test(_text(node_id, _MAX_NODE_ID), str(head.get("status")), _text(message, _MAX_MESSAGE))


def _text(data: bytes, most: int) -> str:
    """Its first `most` characters."""
    return data[: 4 * most].decode("utf-8", "replace")[:most]
