"""How a limiter comes to be the only one that grants, and what it leaves to the next."""

from __future__ import annotations

from limiter.leadership.alone import Alone
from limiter.leadership.term import Leadership, LeadershipLost, Member, Term

__all__ = ["Alone", "Leadership", "LeadershipLost", "Member", "Term"]
