"""Decides which groups an asynchronous run plays, and which of them a step is trained on. Pure: events go in, decisions
come out.

A group is the trajectories of one problem. It is known by its number, its place in the data's order, which goes on from
pass to pass. Its staleness is the step that is trained on it less the step for which trajectories were collected when
it was begun: none of its tokens is of older weights than that.

At most min(workers - running, (max_staleness + step) * per_step - (accepted + running)) groups may be begun, as in
SkyRL's fully asynchronous trainer (AReaL, arXiv:2505.24298, equation 3). So a group that does not take longer than
those begun after it is at most `max_staleness` old; others are trained on late.

Where groups whose rewards are all equal are to be replaced, others are begun in their place, up to a bound for each
step: a model that solves everything, or nothing, must not roll out for ever (DAPO, arXiv:2503.14476, 3.2).

Invariants: submitted = accepted + lost + replaced + running, and accepted = trained + taken + waiting; every number
below the next one is in one place: waiting to be begun again, running, waiting, taken, trained, replaced, or given up;
none is trained on twice. `state` with the number of the step is all that a run needs to go on: what it had begun and
not trained on is begun again, so nothing is left out of a pass because a run was killed.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fairbox.errors import FairboxError

LOST_PLAYS = 3
"""Plays of a problem that the service fails, all trajectories of them, until it is left out of its pass: one that can't
be played must not be played for ever."""


class GroupEnd(StrEnum):
    """Outcome of a group that has ended."""

    WAITS = "waits"
    """It waits for a step, in the order in which groups end."""
    LOST = "lost"
    """It is begun again: the service failed all of it."""
    GIVEN_UP = "given_up"
    """The service failed it too often, and it is left out of this pass."""
    REPLACED = "replaced"
    """Nothing can be learned from it, and another one is begun."""


@dataclass(frozen=True, slots=True)
class StalenessRules:
    """Bounds of the groups and steps of a run. All at least 1, `max_staleness` at least 0."""

    per_step: int
    """Groups that a step is trained on."""
    max_staleness: int
    workers: int
    """Groups that run at once."""
    steps: int
    """Steps of the whole run; no group is begun for steps beyond the last."""
    replaced: int = 0
    """Groups without a signal that are replaced before one step, at most; those beyond are trained on."""


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group that a step is trained on."""

    number: int
    staleness: int
    """Staleness in steps."""


class GroupLedger:
    """`submit` until it gives None; `ended` for each; `take` a step's groups, and `trained` behind it.

    `step` is the next one to be done, from 1; `state` what `state()` gave before that step.
    """

    def __init__(self, rules: StalenessRules, *, step: int = 1, state: Mapping[str, Any] | None = None) -> None:
        self._rules = rules
        self._step = step
        self._next, self._again = _read(state)
        self._running: dict[int, int] = {}
        """Number -> the step for which trajectories were collected when it was begun."""
        self._waiting: dict[int, int] = {}
        """The same for groups that have ended, in the order in which they did."""
        self._taken: tuple[int, ...] = ()
        self._trained = (step - 1) * rules.per_step
        self.submitted = self._trained
        self._plays_lost: Counter[int] = Counter()
        self.lost = 0
        """Groups that the service failed since the run was started or resumed, and groups of refused steps."""
        self.lost_in_a_row = 0
        """Groups that the service failed, since one was scored."""
        self.replaced = 0
        """Groups without a signal since the run was started or resumed."""
        self._replaced_now = 0
        """The same since the last step was trained on."""

    @property
    def running(self) -> int:
        """Groups that are played."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Groups that have ended, and are in no step yet."""
        return len(self._waiting)

    @property
    def accepted(self) -> int:
        """Groups that were trained on, or are to be."""
        return self._trained + len(self._taken) + len(self._waiting)

    @property
    def capacity(self) -> int:
        """Groups that may be begun now; 0 or less: none."""
        rules, running = self._rules, self.running
        allowed = min(rules.max_staleness + self._step, rules.steps) * rules.per_step
        return min(rules.workers - running, allowed - (self.accepted + running))

    def submit(self) -> int | None:
        """The next group to be begun: one that is to be begun again, else the next in the data's order."""
        if self.capacity <= 0:
            return None
        if self._again:
            number = self._again.pop(0)
        else:
            number, self._next = self._next, self._next + 1
        self._running[number] = self._step
        self.submitted += 1
        return number

    def ended(self, number: int, *, scored: int, equal: bool = False) -> GroupEnd:
        """Records that a group has ended by itself, with `scored` scored trajectories. `equal`: their rewards are."""
        began = self._running.pop(number)
        if not scored:
            return self._lose(number)
        self.lost_in_a_row = 0
        self._plays_lost.pop(number, None)
        if equal and self._replaced_now < self._rules.replaced:
            self.replaced += 1
            self._replaced_now += 1
            return GroupEnd.REPLACED
        self._waiting[number] = began
        return GroupEnd.WAITS

    def take(self) -> tuple[TakenGroup, ...] | None:
        """The groups of this step, those that ended first; None: there are too few."""
        assert not self._taken, "a step is trained"
        if len(self._waiting) < self._rules.per_step:
            return None
        chosen = list(self._waiting.items())[: self._rules.per_step]
        self._taken = tuple(number for number, _ in chosen)
        for number in self._taken:
            del self._waiting[number]
        return tuple(TakenGroup(number, self._step - began) for number, began in chosen)

    def refuse(self) -> None:
        """Begins all groups of this step again: the service failed too many trajectories of them."""
        assert self._taken, "nothing was taken"
        for number in self._taken:
            insort(self._again, number)
        self.lost += len(self._taken)
        self._taken = ()

    def trained(self) -> None:
        """Records that the step was trained on what it took, and begins the next one."""
        assert self._taken, "nothing was taken"
        self._trained += len(self._taken)
        self._taken = ()
        self._replaced_now = 0
        self._step += 1

    def state(self) -> dict[str, Any]:
        """Groups still to be played or trained on, as plain values for a checkpoint."""
        begun = (*self._again, *self._running, *self._waiting, *self._taken)
        return {"next": self._next, "again": sorted(begun)}

    def _lose(self, number: int) -> GroupEnd:
        self.lost += 1
        self.lost_in_a_row += 1
        self._plays_lost[number] += 1
        if self._plays_lost[number] < LOST_PLAYS:
            insort(self._again, number)
            return GroupEnd.LOST
        del self._plays_lost[number]
        return GroupEnd.GIVEN_UP


def _read(state: Mapping[str, Any] | None) -> tuple[int, list[int]]:
    """(next number, numbers that are to be begun again)."""
    if state is None:
        return 0, []
    try:
        return int(state["next"]), sorted(int(number) for number in state["again"])
    except (KeyError, TypeError, ValueError):
        raise FairboxError("the checkpoint does not say which problems an asynchronous run had begun") from None
