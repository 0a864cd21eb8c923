"""How a limiter comes to be the only one that grants, and what it leaves to the next."""

from __future__ import annotations

from limiter.leadership.alone import Alone
from limiter.leadership.election import Election
from limiter.leadership.elector import Elector
from limiter.leadership.record import Conflict, Record, RecordStore, StoreUnavailable
from limiter.leadership.term import Leadership, LeadershipLost, Member, Term

__all__ = [
    "Alone",
    "Conflict",
    "Election",
    "Elector",
    "Leadership",
    "LeadershipLost",
    "Member",
    "Record",
    "RecordStore",
    "StoreUnavailable",
    "Term",
]
