"""The sessions of a server: which live, whose turn it is in each, and which have been idle for too long.

room reserved -> live (rests, or a cell has its turn and others queue behind it) -> ended (why stays known a while).

Invariants: one cell of a session at a time, in the order of arrival; no more than `most` sessions live or are being
made; a tenant that has fewer than its share of them can have one more, if it has to as soon as a cell has ended: none
is ended for another tenant while a cell runs in it; what waits in an ended session is told so.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from executor_service.errors import SessionBusy, SessionNotFound
from executor_service.model import Limits, SessionInfo
from executor_service.runs.shares import Weights, bound, lender
from executor_service.sessions.reasons import Ended, TooManySessions
from fairbox.clock import Clock

if TYPE_CHECKING:
    from executor_service.sessions.interpreter import Interpreter
    from executor_service.sessions.interpreters import InterpreterTree

MAX_BESIDE = 16
"""Commands beside a shell that may run at once: each is two processes of the session's 64, of its process limit."""
MAX_WAITING = 16
"""Cells that may wait for their turn in one session: its owner speaks alone as a rule, and a cancelled cell takes a
moment to end."""
_UNKNOWN = "is not known here: it never was, or it ended with an earlier server"
KEPT_ENDED = 10_000
"""Ended sessions whose reason is known."""


@dataclass(eq=False, slots=True)
class LiveSession:
    """One that lives."""

    number: int
    info: SessionInfo
    """As it was when it was made."""
    limits: Limits
    """Limits of its cells that name none."""
    tree: InterpreterTree
    member: Interpreter
    clock: Clock
    idle_since: float
    cells: int = 0
    memory_bytes: int = 0
    """Bytes that its interpreter held at the end of its last cell."""
    busy: bool = False
    """A cell has its turn."""
    running: int = 0
    """Cells and commands that have their slot as well; or branches are being made. The session is not ended for another
    tenant now."""
    beside: int = 0
    """Commands beside the shell that have come and not ended."""
    still: bool = False
    """None may begin now: who has the turn wants no other."""
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    async def enter(self) -> None:
        """Returns when it is the caller's turn, until `leave()`. Raises SessionBusy, and SessionNotFound when the
        session ends before that."""
        if not self.busy:
            self.busy = True
            return
        if len(self.waiting) >= MAX_WAITING:
            named = f"session {self.info.session_id!r}"
            raise SessionBusy(f"{named} runs a cell, and {MAX_WAITING} wait for their turn already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn in self.waiting:
                self.waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                self.leave()  # its turn had come in the moment in which it gave up
            raise

    def enter_at_once(self) -> None:
        """It is the caller's turn now. Raises SessionBusy."""
        if self.busy or self.beside:
            what = "a cell" if self.busy else "a command beside its shell"
            raise SessionBusy(f"session {self.info.session_id!r} runs {what}")
        self.busy = self.still = True

    def enter_beside(self) -> None:
        """A command beside the shell begins, until `leave_beside()`. Raises SessionBusy."""
        if self.still or self.beside >= MAX_BESIDE:
            why = "is being kept as it is" if self.still else f"runs {MAX_BESIDE} commands beside its shell already"
            raise SessionBusy(f"session {self.info.session_id!r} {why}")
        self.beside += 1

    def leave_beside(self) -> None:
        """A command beside the shell has ended."""
        self.idle_since = self.clock.now()
        self.beside -= 1

    def leave(self) -> None:
        """The caller has had its turn; the one that has waited longest has it now."""
        self.idle_since = self.clock.now()
        self.still = False
        while self.waiting:
            following = self.waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self.busy = False

    def seen(self) -> SessionInfo:
        """The session at this moment."""
        busy = self.busy or self.beside > 0
        idle_s = 0.0 if busy else max(0.0, self.clock.now() - self.idle_since)
        return replace(self.info, busy=busy, idle_s=idle_s, cells=self.cells, memory_bytes=self.memory_bytes)


class _Debt(NamedTuple):
    """Room that a tenant has to give back for another one's session."""

    tenant: str
    paid: asyncio.Future[LiveSession]
    """The session whose end has made the room."""


class SessionTable:
    """`server` is the name that every session id begins with; `weights` are those of tenants whose share is not that of
    all others."""

    def __init__(self, server: str, clock: Clock, *, most: int, weights: Weights | None = None) -> None:
        self.live: dict[str, LiveSession] = {}
        self._server = server
        self._clock = clock
        self._most = most
        self._weights = weights or {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self.made = 0
        """Sessions so far, branches among them."""
        self._used: Counter[str] = Counter()
        """Tenant -> sessions that live or are being made, without those that it owes."""
        self._debts: list[_Debt] = []
        self._numbers = count(1)

    def session_id(self, secret: str) -> str:
        """An id that names this server and can't be guessed if `secret` can't."""
        return f"{self._server}~{secret}"

    def reserve(self, number: int, tenant: str) -> tuple[list[LiveSession], list[asyncio.Future[LiveSession]]]:
        """Takes room for so many sessions of a tenant. Returns those that have to be ended at once to make it, and what
        to wait for: sessions whose ends have made it. Raises TooManySessions; then nothing has changed."""
        used, giving_way, debtors = self._used.copy(), list[LiveSession](), Counter[str]()
        free = self._most - used.total()
        used[tenant] += min(number, free)
        for _ in range(number - free):
            other = lender(tenant, used, self._weights)
            at_once, later = self._can_end(other) if other is not None else ([], 0)
            if other is None or debtors[other] >= len(at_once) + later:
                raise TooManySessions(self._most, bound(tenant, self._used, self._most, self._weights))
            giving_way += at_once[debtors[other] :][:1]
            debtors[other] += 1
            used[other] -= 1
            used[tenant] += 1
        self._used = used
        debts = [_Debt(other, asyncio.get_running_loop().create_future()) for other in debtors.elements()]
        self._debts += debts
        return giving_way, [debt.paid for debt in debts]

    def _can_end(self, tenant: str) -> tuple[list[LiveSession], int]:
        """A tenant's sessions in which no cell runs, first the one that has rested longest, last the oldest whose cell
        waits; and how many it can end beside them, once their cells have ended."""
        mine = [session for session in self.live.values() if session.info.tenant == tenant]
        at_once = [session for session in mine if not session.running]
        at_once.sort(key=lambda each: (each.busy, -each.number if each.busy else each.idle_since))
        return at_once, len(mine) - len(at_once) - sum(debt.tenant == tenant for debt in self._debts)

    def owes(self, tenant: str) -> bool:
        """Says whether the tenant's next session in which no cell runs has to end for another tenant."""
        return any(debt.tenant == tenant for debt in self._debts)

    def release(self, number: int, tenant: str) -> None:
        """Gives reserved room back, and with it what others owe to those who no longer wait."""
        self._used[tenant] -= number
        for debt in [each for each in self._debts if each.paid.cancelled()]:
            self._debts.remove(debt)
            self._used[debt.tenant] += 1
        self._used += Counter()  # forgets tenants that have none

    def add(self, info: SessionInfo, limits: Limits, tree: InterpreterTree, member: Interpreter) -> LiveSession:
        """A session lives, in room that its tenant has reserved. `limits` are those of its cells that name none."""
        self.made += 1
        session = LiveSession(next(self._numbers), info, limits, tree, member, self._clock, self._clock.now())
        session.cells, session.memory_bytes = info.cells, info.memory_bytes  # a branch begins with its parent's
        self.live[info.session_id] = session
        return session

    def find(self, session_id: str) -> LiveSession:
        """Raises SessionNotFound."""
        if session := self.live.get(session_id):
            return session
        raise self.not_found(session_id)

    def language(self, session_id: str) -> str:
        """Language of the cells of a live session; empty: it is not one."""
        session = self.live.get(session_id)
        return session.info.language if session is not None else ""

    def permit(self, session_id: str, tenant: str) -> None:
        """Raises SessionNotFound for a live session that is another tenant's, as for one that never was."""
        session = self.live.get(session_id)
        if session is not None and session.info.tenant != tenant:
            raise SessionNotFound(f"session {session_id!r} {_UNKNOWN}")

    def end(self, session_id: str, ended: Ended) -> None:
        """The session is no more; whoever waits for a turn gets SessionNotFound. The first reason stays."""
        session = self.live.pop(session_id, None)
        if session is None:
            return
        self.release(1, session.info.tenant)
        if self._debts:  # whoever's end it is: there is room
            debt = next((each for each in self._debts if each.tenant == session.info.tenant), self._debts[0])
            self._debts.remove(debt)
            self._used[debt.tenant] += 1
            if not debt.paid.done():
                debt.paid.set_result(session)
        self._ended[session_id] = ended
        while len(self._ended) > KEPT_ENDED:
            self._ended.popitem(last=False)
        for waiting in session.waiting:
            if not waiting.done():
                waiting.set_exception(self.not_found(session_id))
        session.waiting.clear()

    def expired(self) -> list[LiveSession]:
        """Sessions that have been idle for as long as they may."""
        now = self._clock.now()
        resting = [each for each in self.live.values() if not each.busy and not each.beside]
        return [each for each in resting if now - each.idle_since >= each.info.idle_ttl_s]

    def page(self, *, owner: str, tenant: str, after: int, size: int) -> tuple[list[SessionInfo], int]:
        """The next `size` sessions behind number `after`, oldest first, and the number to go on from; 0: no more."""
        found: list[SessionInfo] = []
        last = 0
        for session in self.live.values():
            info = session.info
            if session.number <= after or owner not in ("", info.owner) or tenant not in ("", info.tenant):
                continue
            if len(found) == size:
                return found, last
            found.append(session.seen())
            last = session.number
        return found, 0

    def not_found(self, session_id: str) -> SessionNotFound:
        """The error for an id that does not live here."""
        if ended := self._ended.get(session_id):
            return SessionNotFound(f"session {session_id!r} {ended.reason}", ended.cause)
        server, mark, _ = session_id.rpartition("~")
        elsewhere = f"belongs to server {server!r}, and this is {self._server!r}"
        why = elsewhere if mark and server != self._server else _UNKNOWN
        return SessionNotFound(f"session {session_id!r} {why}")
