"""Exceptions and reasons of sessions: why one ended, and why a call about one is refused."""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.model import Cause


class UnknownSession(Exception):
    """No session has this id, or none any more. The cause is POLICY if its own code can have ended it."""

    def __init__(self, session_id: str, reason: str, cause: Cause = Cause.INFRA) -> None:
        super().__init__(f"session {session_id!r} {reason}")
        self.cause = cause


class SessionQueueFull(Exception):
    """A cell runs, and what was asked for can't wait, or too many wait already."""


class TooManySessions(Exception):
    """The server has as many sessions as it may, and none that another tenant has borrowed."""

    def __init__(self, most: int, bound: str) -> None:
        super().__init__(f"{most} sessions live or are being made already (max_sessions), {bound}")


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a session has ended."""

    reason: str
    """Reason, phrased to follow "session ID ", e.g. "was deleted"."""
    cause: Cause = Cause.INFRA
