"""The time after a start in which nothing is granted, because programs of an earlier leader may be running uncounted.

It ends when every executor of the roster has said hello again, and so told what it runs, or when programs of those that
did not return have provably ended; without a roster only the latter counts. Never before clients have had the time to
bring back their tickets, and what they hold. Only whoever had no leader before it has nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limiter.core.deadlines import NEVER
from limiter.core.limits import Timing

if TYPE_CHECKING:
    from limiter.core.events import Hello

_READ_WITHIN_S = 10.0
"""For the hellos of clients that came in time: far more than reading them takes."""

# Which executors may be running something: kept where the next leader finds it, so that it knows whom to wait for.
#
# Invariants: an executor is welcomed only when a roster that names it is known to be kept; who is taken off has
# provably ended. Only changes are written, so executors that come and go are rare enough to wait for.


@dataclass(frozen=True, slots=True)
class Member:
    """An executor's session."""

    session_id: str
    name: str


class Roster:
    """A record of members and of hellos that wait: `LimiterCore` alone changes it."""

    def __init__(self, members: Iterable[Member], *, kept: bool) -> None:
        self._members = {member.session_id: member for member in members}
        self._in = set(self._members)
        """Sessions that a kept roster is known to name."""
        self._joining: dict[str, tuple[int, Hello]] = {}
        """Hellos that wait, and the version that lets them in."""
        self.kept = kept
        """True if anybody keeps it. If not, nobody waits."""
        self.version = 0
        """Counts the changes."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Members to be kept now."""
        return tuple(self._members.values())

    def admits(self, session_id: str) -> bool:
        """Says whether an executor may be welcomed."""
        return not self.kept or session_id in self._in

    def admit(self, hello: Hello) -> None:
        """Lets an executor in at once: what is kept says that there may be others than it names."""
        self._members[hello.session_id] = Member(hello.session_id, hello.name)
        self._in.add(hello.session_id)
        self.version += 1

    def join(self, hello: Hello) -> bool:
        """Puts an executor on the roster; its hello waits. Whether there is something new to be kept."""
        changed = hello.session_id not in self._members
        if changed:
            self._members[hello.session_id] = Member(hello.session_id, hello.name)
            self.version += 1
        self._joining[hello.session_id] = (self.version, hello)
        return changed

    def leave(self, session_id: str) -> bool:
        """Takes off an executor that has ended. Whether there is something new to be kept."""
        self._joining.pop(session_id, None)
        self._in.discard(session_id)
        if self._members.pop(session_id, None) is None or not self.kept:
            return False
        self.version += 1
        return True

    def kept_at(self, version: int) -> list[Hello]:
        """A version is kept: the hellos that waited for it, in their order."""
        ready = [hello for wanted, hello in self._joining.values() if wanted <= version]
        for hello in ready:
            del self._joining[hello.session_id]
            self._in.add(hello.session_id)
        return ready

    @property
    def joining(self) -> tuple[str, ...]:
        """Sessions whose hellos wait."""
        return tuple(self._joining)

    def joins(self, session_id: str) -> bool:
        """Says whether a hello of that session waits."""
        return session_id in self._joining


class Recovery:
    """A record of who is missing: `LimiterCore` alone changes it."""

    __slots__ = (
        "_client_return",
        "_ended_at",
        "_not_before",
        "_returning",
        "_unknown",
        "_until",
        "active",
        "deadline",
        "missing",
        "reading",
    )

    def __init__(
        self, roster: Sequence[Member] | None, timing: Timing, now: float, *, follows: bool, holds: bool
    ) -> None:
        """`roster` and `follows` as in `limiter.leadership.Term`. `holds`: clients may hold something that nobody has
        bound."""
        self._unknown = roster is None
        self.missing = {member.session_id: member for member in roster or ()}
        """Executors that have not reported, by session."""
        self.active = self._unknown or bool(self.missing) or follows
        """True if nothing may be granted."""
        self._not_before = now + (timing.holder_return if holds else timing.client_return)
        self._until = max(now + timing.executor_silence, self._not_before)
        self._client_return = timing.client_return
        self._ended_at = NEVER if self.active else float("-inf")
        self.deadline = NEVER
        self.reading = 0
        """Hellos of clients that have come and are not read yet."""
        self._returning: dict[str, float] = {}
        """Until when those are waited for who have begun to return."""

    @property
    def unknown(self) -> bool:
        """True if it goes on because nobody knows who runs something. The kept roster then says just that, which covers
        every executor; a roster of the present ones would hide the others from the next leader."""
        return self.active and self._unknown

    @property
    def until(self) -> float:
        """The latest end, as far as is known."""
        return max([self._until, *self._returning.values()])

    def heeds_claims(self, now: float) -> bool:
        """Says whether a client may still bring what an earlier leader gave it."""
        return now < self._ended_at + self._client_return

    def heeds_executor(self, session_id: str) -> bool:
        """Says whether an executor may still report programs from the time of an earlier leader: one that nobody had
        let in runs nothing, and after the end the programs of all others have ended."""
        return self.active and (self._unknown or session_id in self.missing)

    def returned(self, session_id: str) -> None:
        """An executor has said hello."""
        self.missing.pop(session_id, None)
        self._returning.pop(session_id, None)

    def wait_again(self, session_id: str, until: float) -> bool:
        """An executor has begun to return: waits until then. Once for each that is missing, so that this ends."""
        if not self.active or session_id not in self.missing or session_id in self._returning:
            return False
        self._returning[session_id] = until
        return True

    def ends_at(self) -> float:
        """When it ends, as far as is known."""
        if self._unknown or self.missing:
            return self.until
        return self._not_before + (_READ_WITHIN_S if self.reading else 0.0)

    def over(self, now: float) -> bool:
        """Says, once, that it has just ended."""
        if not self.active or now < self.ends_at():
            return False
        self.active, self._ended_at = False, now
        return True
