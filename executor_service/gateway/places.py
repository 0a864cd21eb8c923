"""Keeps the place in the queue of a request that was answered with 504, for the client that asks again.

Clients of SandboxFusion answer a 504 by sending the same body again, after a second or two. Without a memory of it the
request would be the last in the queue each time, and under a steady overload some would never run. So its run goes on
waiting for HOLD_S; the next request with the same body takes it over, once, and whoever comes after that gets a run of
its own. A run that nobody takes over is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from executor_service.model import ExecutionResult

__all__ = ["HOLD_S", "Places", "Ticket"]

HOLD_S = 5.0
"""verl waits for 1 and 2 s before it asks again, the PyPI client for 1 to 9 s."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One run and what is known of it."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """It has a slot, or has ended."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    ending: ExecutionResult | Exception | None = None
    cancel: Callable[[], object] = lambda: None
    _given_up: asyncio.TimerHandle | None = None

    def end(self, ending: ExecutionResult | Exception) -> None:
        self.ending = ending
        self.begun.set()
        self.done.set()


class Places:
    def __init__(self) -> None:
        self._left: dict[bytes, deque[Ticket]] = {}

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._left.values())

    def leave(self, key: bytes, ticket: Ticket) -> None:
        """Nobody waits for it now; whoever asks for the same within HOLD_S may take it."""
        self._left.setdefault(key, deque()).append(ticket)
        ticket._given_up = asyncio.get_running_loop().call_later(HOLD_S, self._give_up, key, ticket)

    def take(self, key: bytes) -> Ticket | None:
        """The ticket that was left first, for one taker."""
        tickets = self._left.get(key)
        if not tickets:
            return None
        ticket = tickets.popleft()
        if not tickets:
            del self._left[key]
        if ticket._given_up is not None:
            ticket._given_up.cancel()
        return ticket

    def _give_up(self, key: bytes, ticket: Ticket) -> None:
        tickets = self._left[key]
        tickets.remove(ticket)
        if not tickets:
            del self._left[key]
        ticket.cancel()
