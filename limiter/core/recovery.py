"""The time after a start in which nothing is granted, because programs of an earlier leader may be running uncounted.

It ends when every executor of the roster has said hello again, and so told what it runs, but not before clients have
had the time to bring their tickets back; or when programs of those that did not return have provably ended. Without a
roster only the latter counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from limiter.core.deadlines import NEVER
from limiter.core.roster import Member
from limiter.core.timing import Timing

__all__ = ["Recovery"]


class Recovery:
    """A record of who is missing: `LimiterCore` alone changes it."""

    __slots__ = ("_not_before", "_unknown", "active", "deadline", "missing", "until")

    def __init__(self, roster: Sequence[Member] | None, timing: Timing, now: float) -> None:
        """`roster` as in `limiter.leadership.Term`: empty: nothing to wait for; None: nobody knows who runs."""
        self._unknown = roster is None
        self.missing = {member.session_id: member for member in roster or ()}
        """Executors that have not reported, by session."""
        self.active = self._unknown or bool(self.missing)
        """Whether nothing may be granted."""
        self.until = now + timing.executor_silence
        """The latest end."""
        self._not_before = now + min(timing.client_return, timing.executor_silence)
        self.deadline = NEVER

    @property
    def unknown(self) -> bool:
        """Whether it goes on because nobody knows who runs something. What was kept then says just that, which covers
        every executor; a roster of those that are here would hide the others from the next leader."""
        return self.active and self._unknown

    def returned(self, session_id: str) -> None:
        """An executor has said hello."""
        self.missing.pop(session_id, None)

    def ends_at(self) -> float:
        """When it ends, as far as is known."""
        return self.until if self._unknown or self.missing else self._not_before

    def over(self, now: float) -> bool:
        """Whether it has just ended; true once."""
        if not self.active or now < self.ends_at():
            return False
        self.active = False
        return True
