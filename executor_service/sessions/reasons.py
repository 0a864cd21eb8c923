"""Why a session ended, and why none is made."""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.errors import Overloaded
from executor_service.model import Cause

_RETRY_S = 5.0
"""Advice to one for whom there is no room: a session ends when its trajectory does."""


class TooManySessions(Overloaded):
    """The server has as many sessions as it may, and none that another tenant has borrowed."""

    subject = "executor:max_sessions"

    def __init__(self, most: int, bound: str) -> None:
        super().__init__(f"{most} sessions live or are being made already (max_sessions), {bound}", _RETRY_S)


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a session has ended."""

    reason: str
    """Reason, phrased to follow "session ID ", e.g. "was deleted"."""
    cause: Cause = Cause.INFRA
