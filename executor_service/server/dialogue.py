"""What is said between the server, a candidate and a checker, and how long each may take.

The two never share a channel: the server takes a frame from the one and passes it on to the other, and it alone hears
the verdict. Each is charged for the time in which it has the word, and for nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from executor_service.core.wall_time import WallTime
from executor_service.sandbox.report import Killed
from executor_service.server.served import Head, Served
from fairbox.clock import Clock

__all__ = ["MAX_MESSAGE", "Dialogue", "Ended", "Speaker", "Test"]

Frame = tuple[Head, bytes]
_SAID_WITHIN_S = 5.0
"""How long a side has waited for a processor is said at once; where its init is starved too, in a moment."""
_SHORTEST_S = 0.01
"""Between two such questions."""
_MAX_TESTS = 10_000
"""Tests of one pytest case."""
MAX_MESSAGE, _MAX_NODE_ID = 2000, 500
"""Characters that are kept of what a checker says."""


class Ended(Exception):  # noqa: N818 - a fact about one side
    """The side that was asked has ended, or was killed because its time was over."""


class Speaker:
    """One side: a worker and the time that it may take (seconds)."""

    def __init__(self, worker: Served, clock: Clock, time_s: float) -> None:
        self._worker = worker
        self._clock = clock
        self._limit_s = time_s
        self._starved_s = 0.0
        self.used_s = 0.0
        """How long it has had the word."""

    async def say(self, head: Head, blob: bytes = b"") -> Frame:
        """Gives it the word, and returns what it answers. Raises Ended."""
        began = self._clock.now()
        try:
            frame = await self._exchange(head, blob, WallTime(began - self.used_s, self._limit_s))
        except TimeoutError:
            self._worker.kill(Killed.WALL)
            raise Ended from None
        finally:
            self.used_s += self._clock.now() - began
        if frame is None or not isinstance(frame[0], dict):  # whatever JSON the candidate sends is a frame
            raise Ended
        return frame

    async def _exchange(self, head: Head, blob: bytes, time: WallTime) -> Frame | None:
        """TimeoutError when its time is over; what it waited for a processor is not charged."""
        left_s, sent = time.left_s(self._clock.now(), self._starved_s), False
        while True:
            try:
                async with asyncio.timeout(max(left_s, 0)):
                    if not sent:
                        await self._worker.send(head, blob)
                        sent = True
                    return await self._worker.receive()
            except TimeoutError:
                if not sent:
                    raise  # a part of it may have been sent
            left_s = await self._more_s(time)

    async def _more_s(self, time: WallTime) -> float:
        """Time that it has left for what it waited. TimeoutError: none."""
        patience_s = time.latest - self._clock.now()
        if patience_s > 0:
            starved_s = await self._worker.starved_s(min(patience_s, _SAID_WITHIN_S))
            self._starved_s = max(self._starved_s, starved_s)
        left_s = time.left_s(self._clock.now(), self._starved_s)
        if left_s <= 0:
            raise TimeoutError
        return max(left_s, _SHORTEST_S)


@dataclass(frozen=True, slots=True)
class Test:
    """What the checker says of one test."""

    node_id: str
    status: str
    message: str


@dataclass
class Dialogue:
    """A candidate and a checker. `candidate` is None where the checker needs none."""

    candidate: Speaker | None
    checker: Speaker
    asked: int = 0
    """How often the checker has asked the candidate."""
    gone: bool = False
    """The candidate was asked and did not answer."""
    tests: list[tuple[Test, int, bool]] = field(default_factory=list)
    """Each with `asked` and `gone` at its end."""

    async def check(self, blob: bytes) -> Head:
        """The checker's verdict frame. Raises Ended where the checker comes to none."""
        head, blob = await self.checker.say({"type": "check"}, blob)
        while True:
            match head.get("type"):
                case "verdict":
                    return head
                case "test" if len(self.tests) < _MAX_TESTS:
                    self.tests.append((_test(head), self.asked, self.gone))
                    head, blob = await self.checker.say({"type": "on"})
                case "ask" | "answer":
                    head, blob = await self.checker.say(*await self._ask(head, blob))
                case _:
                    raise Ended

    async def _ask(self, head: Head, blob: bytes) -> Frame:
        """What the candidate says to what the checker said."""
        self.asked += 1
        if self.candidate is None:
            return {"type": "gone", "reason": "there is no candidate"}, b""
        if not self.gone:
            try:
                said, answer = await self.candidate.say(_passed_on(head), blob)
            except Ended:
                said, answer = {}, b""
            if said.get("type") in ("ask", "answer"):
                return _passed_on(said), answer
            self.gone = True
        return {"type": "gone", "reason": "the candidate has ended"}, b""


def _passed_on(head: Head) -> Head:
    """The parts of a frame that one side may tell the other."""
    kinds: dict[str, type] = {"type": str, "id": int, "op": str, "target": int, "ok": bool}
    return {name: value for name, value in head.items() if name in kinds and type(value) is kinds[name]}


def _test(head: dict[str, Any]) -> Test:
    node_id, message = str(head.get("node_id", "")), str(head.get("message", ""))
    return Test(node_id[:_MAX_NODE_ID], str(head.get("status", "")), message[:MAX_MESSAGE])
