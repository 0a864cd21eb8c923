"""CPU time of the cells that run at once in one box, which its init counts against the sum of their limits.

The init is not woken for a cell that ends before it could have met a limit, nor for each pause between cells that
follow each other closely.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from executor_service.model import Limits
from executor_service.sandbox.orders import Orders
from executor_service.sessions.interpreter import Interpreter

_SHORT_S = 0.003
"""A cell that is over sooner has used no CPU time that mattered."""
_REST_AFTER_S = 0.05
"""Cells often follow each other closely; the init need not hear of each pause."""
_LONG_S = 0.02
"""Behind cells that took longer it does at once: one can have come to hold much memory, which the init then tells."""


class CellTime:
    """Tells the init when to count. `limits`: those of the box."""

    def __init__(self, orders: Orders, limits: Limits) -> None:
        self._orders = orders
        self._limits = limits
        self._cells: dict[Interpreter, float] = {}
        """CPU seconds allowed to each cell that runs."""
        self._counting = False
        """True if the init counts CPU time against a limit."""
        self._since = 0.0
        """Time of the loop since when it does."""
        self._to_count: dict[Interpreter, asyncio.TimerHandle] = {}
        """Timers of cells that the init does not know of yet."""
        self._to_rest: asyncio.TimerHandle | None = None

    def __contains__(self, member: Interpreter) -> bool:
        return member in self._cells

    def begin(self, member: Interpreter, limits: Limits) -> None:
        """A cell begins."""
        self._cells[member] = limits.cpu_time_s
        if self._counting:
            self._count(member)
        else:
            self._to_count[member] = asyncio.get_running_loop().call_later(_SHORT_S, self._count, member)

    def end(self, member: Interpreter) -> None:
        """A cell is over. Idempotent."""
        self._cells.pop(member, None)
        self._forget_to_count(member)
        if not self._cells and self._counting and self._to_rest is None:
            loop = asyncio.get_running_loop()
            if loop.time() - self._since >= _LONG_S:
                self._rest()
            else:
                self._to_rest = loop.call_later(_REST_AFTER_S, self._rest)

    def close(self) -> None:
        """The box has ended: nothing is counted any more."""
        for timer in (*self._to_count.values(), *((self._to_rest,) if self._to_rest else ())):
            timer.cancel()
        self._to_count.clear()

    def _count(self, member: Interpreter) -> None:
        self._forget_to_count(member)
        if member in self._cells:
            self._since = self._since if self._counting else asyncio.get_running_loop().time()
            self._counting = True
            self._orders.allow(replace(self._limits, cpu_time_s=sum(self._cells.values())), member.pid)

    def _forget_to_count(self, member: Interpreter) -> None:
        if waiting := self._to_count.pop(member, None):
            waiting.cancel()

    def _rest(self) -> None:
        self._to_rest = None
        if not self._cells and self._counting:
            self._counting = False
            self._orders.rest()
