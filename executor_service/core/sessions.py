"""The sessions of a server: which live, whose turn it is in each, and which have been idle for too long. Pure.

room reserved -> live (rests, or a cell has its turn and others queue behind it) -> ended (why stays known a while).

Invariants: one cell of a session at a time, in the order of arrival; no more than `most` sessions live or are being
made; what waits in an ended session is told so; time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from executor_service.model import Cause, Limits, SessionInfo

__all__ = ["Ended", "SessionBusy", "SessionNotFound", "SessionStatistics", "SessionTable", "TooManySessions"]

MAX_WAITING = 16
"""Cells that may wait for their turn in one session: its owner speaks alone as a rule, and a cancelled cell takes a
moment to end."""
_UNKNOWN = "is not known here: it never was, or it ended with an earlier server"
KEPT_ENDED = 10_000
"""Ended sessions whose reason is known."""
DEFAULT_PAGE = 100


class SessionNotFound(Exception):  # noqa: N818 - a fact about a session
    """No session has this id, or none any more. `cause` says who could have ended it."""

    def __init__(self, session_id: str, reason: str, cause: Cause = Cause.INFRA) -> None:
        super().__init__(f"session {session_id!r} {reason}")
        self.cause = cause


class SessionBusy(Exception):  # noqa: N818 - a state of a session
    """A cell runs, and what was asked for can't wait, or too many wait already."""


class TooManySessions(Exception):  # noqa: N818 - a decision
    """The server has as many sessions as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} sessions live or are being made already (max_sessions)")


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """Sessions at one instant, and those since the start."""

    live: int = 0
    branches: int = 0
    """Of those, the ones that were forked from another."""
    busy: int = 0
    """Of those, the ones whose cell runs."""
    waiting: int = 0
    """Cells that wait for their turn."""
    memory_bytes: int = 0
    """Resident memory of their interpreters at the end of their last cells."""
    made_total: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a session has ended."""

    reason: str
    """Follows `session ID `: `was deleted`."""
    cause: Cause = Cause.INFRA


@dataclass(slots=True)
class _Entry:
    number: int
    info: SessionInfo
    limits: Limits
    idle_since: float
    cells: int = 0
    memory_bytes: int = 0
    turn: Hashable | None = None
    waiting: deque[Hashable] = field(default_factory=deque)


@dataclass(slots=True)
class SessionTable:
    """`server` is the name that every session id begins with."""

    server: str
    most: int
    _live: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    _ended: OrderedDict[str, Ended] = field(default_factory=OrderedDict)
    _reserved: int = 0
    _made: int = 0
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def session_id(self, secret: str) -> str:
        """An id that names this server and can't be guessed if `secret` can't."""
        return f"{self.server}~{secret}"

    def reserve(self, number: int) -> None:
        """Takes room for so many sessions. Raises TooManySessions."""
        if len(self._live) + self._reserved + number > self.most:
            raise TooManySessions(self.most)
        self._reserved += number

    def release(self, number: int) -> None:
        """Gives reserved room back."""
        self._reserved -= number

    def add(self, info: SessionInfo, limits: Limits, now: float) -> None:
        """A session lives, in room that was reserved. `limits` are those of its cells that name none."""
        self._reserved -= 1
        self._made += 1
        entry = _Entry(next(self._numbers), info, limits, now, info.cells, info.memory_bytes)
        self._live[info.session_id] = entry

    def limits(self, session_id: str) -> Limits:
        """Raises SessionNotFound."""
        return self._find(session_id).limits

    def info(self, session_id: str, now: float) -> SessionInfo:
        """The session at this moment. Raises SessionNotFound."""
        return _seen(self._find(session_id), now)

    def made(self, session_id: str) -> SessionInfo:
        """The session as it was when it was made, which costs nothing to say. Raises SessionNotFound."""
        return self._find(session_id).info

    def permit(self, session_id: str, tenant: str) -> None:
        """Raises SessionNotFound for a live session that is another tenant's, as for one that never was."""
        entry = self._live.get(session_id)
        if entry is not None and entry.info.tenant != tenant:
            raise SessionNotFound(session_id, _UNKNOWN)

    def enter(self, session_id: str, key: Hashable) -> bool:
        """`key` wants a turn: True, it has it; False, it waits. Raises SessionNotFound and SessionBusy."""
        entry = self._find(session_id)
        if entry.turn is None:
            entry.turn = key
            return True
        if len(entry.waiting) >= MAX_WAITING:
            raise SessionBusy(f"session {session_id!r} runs a cell, and {MAX_WAITING} wait for their turn already")
        entry.waiting.append(key)
        return False

    def enter_at_once(self, session_id: str, key: Hashable) -> None:
        """`key` gets the turn now. Raises SessionNotFound and SessionBusy."""
        if self._find(session_id).turn is not None:
            raise SessionBusy(f"session {session_id!r} runs a cell")
        self.enter(session_id, key)

    def taken(self, session_id: str) -> bool:
        """Whether one who enters now has to wait. False for a session that does not live."""
        entry = self._live.get(session_id)
        return entry is not None and entry.turn is not None

    def leave(self, session_id: str, key: Hashable, now: float) -> Hashable | None:
        """`key` has had its turn, or gave up. Returns who has the turn instead. Idempotent."""
        entry = self._live.get(session_id)
        if entry is None:
            return None
        if key in entry.waiting:
            entry.waiting.remove(key)
        if entry.turn != key:
            return None
        entry.turn = entry.waiting.popleft() if entry.waiting else None
        entry.idle_since = now
        return entry.turn

    def count_cell(self, session_id: str) -> int:
        """A cell begins: its number, from 1. Raises SessionNotFound."""
        entry = self._find(session_id)
        entry.cells += 1
        return entry.cells

    def note_memory(self, session_id: str, memory_bytes: int) -> None:
        """What its interpreter holds. Without effect for an ended session."""
        if entry := self._live.get(session_id):
            entry.memory_bytes = memory_bytes

    def end(self, session_id: str, ended: Ended) -> tuple[Hashable, ...]:
        """The session is no more. Returns who waits for a turn in vain. The first reason stays."""
        entry = self._live.pop(session_id, None)
        if entry is None:
            return ()
        self._ended[session_id] = ended
        while len(self._ended) > KEPT_ENDED:
            self._ended.popitem(last=False)
        return tuple(entry.waiting)

    def expired(self, now: float) -> list[str]:
        """Sessions that have been idle for as long as they may."""
        return [
            session_id
            for session_id, entry in self._live.items()
            if entry.turn is None and now - entry.idle_since >= entry.info.idle_ttl_s
        ]

    def page(self, *, owner: str, tenant: str, after: int, size: int, now: float) -> tuple[list[SessionInfo], int]:
        """The next `size` sessions behind number `after`, oldest first, and the number to go on from; 0: no more."""
        found: list[SessionInfo] = []
        last = 0
        for entry in self._live.values():
            if entry.number <= after or owner not in ("", entry.info.owner) or tenant not in ("", entry.info.tenant):
                continue
            if len(found) == size:
                return found, last
            found.append(_seen(entry, now))
            last = entry.number
        return found, 0

    def not_found(self, session_id: str) -> SessionNotFound:
        """What to say of an id that does not live here."""
        if ended := self._ended.get(session_id):
            return SessionNotFound(session_id, ended.reason, ended.cause)
        server, mark, _ = session_id.rpartition("~")
        if mark and server != self.server:
            return SessionNotFound(session_id, f"belongs to server {server!r}, and this is {self.server!r}")
        return SessionNotFound(session_id, _UNKNOWN)

    def statistics(self) -> SessionStatistics:
        """As it is now."""
        entries = list(self._live.values())
        return SessionStatistics(
            live=len(entries),
            branches=sum(bool(entry.info.parent_session_id) for entry in entries),
            busy=sum(entry.turn is not None for entry in entries),
            waiting=sum(len(entry.waiting) for entry in entries),
            memory_bytes=sum(entry.memory_bytes for entry in entries),
            made_total=self._made,
        )

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    def __iter__(self) -> Iterable[str]:
        return iter(tuple(self._live))

    def _find(self, session_id: str) -> _Entry:
        entry = self._live.get(session_id)
        if entry is None:
            raise self.not_found(session_id)
        return entry


def _seen(entry: _Entry, now: float) -> SessionInfo:
    busy = entry.turn is not None
    idle_s = 0.0 if busy else max(0.0, now - entry.idle_since)
    return replace(entry.info, busy=busy, idle_s=idle_s, cells=entry.cells, memory_bytes=entry.memory_bytes)
