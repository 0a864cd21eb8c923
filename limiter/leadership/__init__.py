"""Leadership: makes one limiter the only one that grants, and keeps what it leaves to the next."""

from __future__ import annotations

from limiter.leadership.election import Conflict, Election, Record, StoreUnavailable
from limiter.leadership.elector import Elector
from limiter.leadership.term import Alone, Leadership, LeadershipLost, Member, RosterNotKept, Term

__all__ = [
    "Alone",
    "Conflict",
    "Election",
    "Elector",
    "Leadership",
    "LeadershipLost",
    "Member",
    "Record",
    "RosterNotKept",
    "StoreUnavailable",
    "Term",
]
