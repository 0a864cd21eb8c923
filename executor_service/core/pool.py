"""Which boxes there are, which wait for work, and who gets the next: one pool for each profile. Pure.

A box is *made* (takes tens of milliseconds), then *ready*, then *used*, then *cleared* (takes a few), then ready again.
Takers are served first in, first out. The number of boxes follows what was used at once lately, with some spare ones;
the box that was used last is taken first, so that those beyond need grow cold and are given up.

Invariants: a box has one user at most; no more than `most` boxes are alive; a taker that gave up gets nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Assign", "Destroy", "Make", "PoolStatistics", "WarmPool"]


@dataclass(frozen=True, slots=True)
class Assign:
    """`taker` gets box `box`."""

    taker: Hashable
    box: int


@dataclass(frozen=True, slots=True)
class Make:
    """A box with this number is to be made."""

    box: int


@dataclass(frozen=True, slots=True)
class Destroy:
    """A ready box is not needed any more."""

    box: int


Action = Assign | Make | Destroy


class _State(StrEnum):
    """Where a box is in its life."""

    MADE = "made"
    """Being made."""
    READY = "ready"
    """Has a worker that waits."""
    USED = "used"
    """Has a user."""
    CLEARED = "cleared"
    """Its user is gone; the next worker is on the way."""
    DYING = "dying"
    """It is being taken down; its number is not free yet."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Boxes by state, and takers that wait."""

    ready: int
    used: int
    pending: int
    waiting: int
    made_total: int


@dataclass(slots=True)
class _Demand:
    """The most boxes in use at once, in this period and the one before."""

    period_s: float
    began: float = 0.0
    now_most: int = 0
    before: int = 0

    def note(self, used: int, now: float) -> None:
        if now - self.began >= self.period_s:
            self.before = self.now_most if now - self.began < 2 * self.period_s else 0
            self.now_most, self.began = 0, now
        self.now_most = max(self.now_most, used)

    @property
    def most(self) -> int:
        return max(self.now_most, self.before)


@dataclass(slots=True)
class WarmPool:
    """The boxes of one profile. `spare` are kept ready beyond what is used; never more than `most` in all."""

    spare: int
    most: int
    first: int = 0
    """Number of the first box."""
    period_s: float = 30.0
    _states: dict[int, _State] = field(default_factory=dict)
    _ready: list[int] = field(default_factory=list)
    _takers: deque[Hashable] = field(default_factory=deque)
    _free: list[int] = field(default_factory=list)
    _used: int = 0
    _made: int = 0
    _demand: _Demand | None = None

    def take(self, taker: Hashable, now: float) -> list[Action]:
        """`taker` wants a box; it is assigned by one of the actions of this or a later call."""
        self._takers.append(taker)
        return self._serve(now)

    def give_up(self, taker: Hashable) -> None:
        """A taker that waits does not want one any more. Without effect for any other."""
        if taker in self._takers:
            self._takers.remove(taker)

    def ready(self, box: int, now: float) -> list[Action]:
        """The worker of a box waits for work."""
        if self._states.get(box) in (_State.MADE, _State.CLEARED):
            self._states[box] = _State.READY
            self._ready.append(box)
        return self._serve(now)

    def released(self, box: int) -> None:
        """The user of a box is gone; it is being cleared."""
        if self._states.get(box) is _State.USED:
            self._states[box] = _State.CLEARED
            self._used -= 1

    def lost(self, box: int) -> None:
        """A box has died and is being buried; nobody gets it any more. `gone()` follows."""
        state = self._states.get(box)
        if state is _State.READY:
            self._ready.remove(box)
        self._used -= state is _State.USED
        if state is not None:
            self._states[box] = _State.DYING  # whatever its user says of it later

    def gone(self, box: int, now: float) -> list[Action]:
        """A dead box is buried: its number is free. Idempotent."""
        state = self._states.pop(box, None)
        if state is None:
            return []
        if state is _State.READY:
            self._ready.remove(box)
        self._used -= state is _State.USED
        self._free.append(box)
        return self._serve(now)

    def tick(self, now: float) -> list[Action]:
        """To be called now and then: gives up what is not needed, makes what is missing."""
        self._note(now)
        surplus = len(self._states) - self._target()
        doomed = self._ready[: max(0, surplus)]
        for box in doomed:
            self.lost(box)
        return [Destroy(box) for box in doomed] or self._serve(now)

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(len(self._ready), self._used, self._pending(), len(self._takers), self._made)

    def _target(self) -> int:
        assert self._demand is not None
        return min(self._demand.most + self.spare, self.most)

    def _note(self, now: float) -> None:
        if self._demand is None:
            self._demand = _Demand(self.period_s, began=now)
        self._demand.note(self._used, now)

    def _serve(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._takers and self._ready:
            box = self._ready.pop()
            self._states[box] = _State.USED
            self._used += 1
            actions.append(Assign(self._takers.popleft(), box))
        self._note(now)
        missing = max(len(self._takers) - self._pending(), self._target() - len(self._states))
        for _ in range(min(missing, self.most - len(self._states))):
            box = self._free.pop() if self._free else self._new_number()
            self._states[box] = _State.MADE
            self._made += 1
            actions.append(Make(box))
        return actions

    def _pending(self) -> int:
        """Boxes that will be ready without anybody's doing."""
        return sum(state in (_State.MADE, _State.CLEARED) for state in self._states.values())

    def _new_number(self) -> int:
        return self.first + len(self._states)
