"""Which unary requests have ended lately, so that a late or repeated message about one finds nothing to do.

Bounded: the oldest is forgotten first, and each after its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limiter.core.deadlines import NEVER

if TYPE_CHECKING:
    from limiter.core.deadlines import Deadlines

__all__ = ["Tombstone", "Tombstones"]


class Tombstone:
    """The end of one request."""

    __slots__ = ("attempt", "deadline", "key")

    def __init__(self, key: tuple[str, str], attempt: int) -> None:
        self.key = key
        self.attempt = attempt
        self.deadline = NEVER


class Tombstones:
    """By session and request. `deadlines` says when one is to be forgotten."""

    def __init__(self, deadlines: Deadlines[Any], *, ttl: float, most: int) -> None:
        self._deadlines = deadlines
        self._ttl = ttl
        self._most = most
        self._stones: dict[tuple[str, str], Tombstone] = {}

    def __len__(self) -> int:
        return len(self._stones)

    def find(self, session_id: str, request_id: str) -> Tombstone | None:
        """The end of a request, if it is remembered."""
        return self._stones.get((session_id, request_id))

    def bury(self, session_id: str, request_id: str, attempt: int, now: float) -> None:
        """Remembers for a while that this request and attempt has ended."""
        key = (session_id, request_id)
        old = self._stones.pop(key, None)
        if old is not None:
            self._deadlines.clear(old)
        elif len(self._stones) >= self._most:
            self._deadlines.clear(self._stones.pop(next(iter(self._stones))))
        stone = self._stones[key] = Tombstone(key, attempt)
        self._deadlines.set(stone, now + self._ttl)

    def forget(self, stone: Tombstone) -> None:
        """Its time has come."""
        del self._stones[stone.key]
