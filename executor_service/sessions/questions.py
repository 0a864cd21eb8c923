"""Questions to the init of a box in which interpreters of sessions live; its answers are events of the box.

Invariants: every wait has a deadline; one question about an interpreter is open at a time, and one for the layer; a
descriptor that nobody waits for any more is closed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from executor_service.sandbox.orders import Orders
from executor_service.sessions.interpreter import Interpreter


class Questions:
    """`heard()` is given the events."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._starved: dict[int, asyncio.Future[float]] = {}
        """Who was asked about, by number inside -> the answer."""
        self._writable: asyncio.Future[int] | None = None
        self.on_kept: Callable[[int], None] | None = None
        """Is told how many bytes the box holds while no cell runs, whenever that has changed by 16 MiB."""

    async def starved_s(self, member: Interpreter, within_s: float, death: asyncio.Future[Any] | None = None) -> float:
        """Seconds that its cell has waited for a processor so far; 0 if the init does not say it within that time, or
        before a `death`; None: its own."""
        number = member.pid
        answer = self._starved[number] = asyncio.get_running_loop().create_future()
        try:
            self._orders.ask_starved(number)
            waiting: set[asyncio.Future[Any]] = {answer, death or member.gone}
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else 0.0
        finally:
            del self._starved[number]

    async def writable(self, member: Interpreter, within_s: float) -> int | None:
        """A descriptor of the writable layer of the box's image, which the caller closes. None if `member` has ended,
        or the init does not answer within that time."""
        assert self._writable is None
        answer = self._writable = asyncio.get_running_loop().create_future()
        try:
            self._orders.ask_writable()
            waiting: set[asyncio.Future[Any]] = {answer, member.gone}
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        except asyncio.CancelledError:
            if answer.done():
                os.close(answer.result())
            raise
        finally:
            self._writable = None

    def heard(self, event: dict[str, Any]) -> None:
        """Takes an answer in, or what the init says without having been asked."""
        if event["type"] == "kept":
            if self.on_kept is not None:
                self.on_kept(event["bytes"])
        elif event["type"] == "writable":
            if self._writable is None or self._writable.done():
                os.close(event["handle"])
            else:
                self._writable.set_result(event["handle"])
        elif (answer := self._starved.get(event["pid"])) is not None and not answer.done():
            answer.set_result(event["seconds"])
