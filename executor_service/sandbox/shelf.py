"""Boxes of one profile, or of one image, by state, and the takers that wait for one. Neither tasks nor I/O:
`SandboxPool` has those.

Invariants: a box is pending, ready or used, or nobody may have it any more; takers are served first in, first out; a
taker that gave up gets nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from executor_service.sandbox.report import ImageMount, SandboxFailure
from executor_service.sandbox.sandbox import Sandbox
from executor_service.sandbox.zygote import Profile, Zygote

_PERIOD_S = 30.0
"""Boxes that were used at once in this period, or the one before, are kept."""
_WARM_S = 60.0
"""So long after its last use an image's boxes wait for the next."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Number of boxes in each state, and of takers that wait."""

    ready: int
    used: int
    pending: int
    waiting: int
    made_total: int


@dataclass(slots=True)
class Demand:
    """The most boxes in use at once, in this period and the one before."""

    began: float
    now_most: int = 0
    before: int = 0

    def note(self, used: int, now: float) -> None:
        """Counts `used` boxes at monotonic second `now`."""
        if now - self.began >= _PERIOD_S:
            self.before = self.now_most if now - self.began < 2 * _PERIOD_S else 0
            self.now_most, self.began = 0, now
        self.now_most = max(self.now_most, used)

    @property
    def most(self) -> int:
        """Boxes in use at once lately."""
        return max(self.now_most, self.before)


@dataclass(eq=False, slots=True)
class ZygoteSlot:
    """Place of a profile's zygote."""

    zygote: Zygote | None = None
    """None: not loaded, or being loaded."""
    failure: SandboxFailure | None = None
    """Reason why the last attempt to load the profile failed."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, slots=True)
class Shelf:
    """Boxes of one profile, or of one image."""

    profile: Profile
    free: list[int]
    """Numbers that no box has. Those of images share one list."""
    demand: Demand
    slot: ZygoteSlot = field(default_factory=ZygoteSlot)
    """Shared with the profile whose zygote makes the boxes of an image."""
    image: ImageMount | None = None
    """Root of their programs; None: what the host has."""
    boxes: set[Sandbox] = field(default_factory=set)
    """All boxes whose numbers are taken: those below, and those that are being taken down."""
    pending: set[Sandbox] = field(default_factory=set)
    """Boxes that become ready by themselves: being made, or being cleared."""
    ready: list[Sandbox] = field(default_factory=list)
    used: set[Sandbox] = field(default_factory=set)
    takers: deque[asyncio.Future[Sandbox]] = field(default_factory=deque)
    made: int = 0
    failures: int = 0
    """Boxes in a row that could not be made."""

    @property
    def idle(self) -> bool:
        """True if it has no box, and nobody waits for one."""
        return not self.boxes and not self.takers

    def join(self) -> asyncio.Future[Sandbox]:
        """Queues one more taker."""
        waiting: asyncio.Future[Sandbox] = asyncio.get_running_loop().create_future()
        self.takers.append(waiting)
        return waiting

    def leave(self, waiting: asyncio.Future[Sandbox]) -> None:
        """Takes a taker out of the queue. Idempotent."""
        if waiting in self.takers:
            self.takers.remove(waiting)

    def refuse(self, failure: SandboxFailure) -> None:
        """Raises the failure in all takers that wait, so that they need not wait any longer."""
        for waiting in self.takers:
            if not waiting.done():
                waiting.set_exception(failure)

    def assign(self) -> None:
        """Gives ready boxes to takers. The box that was used last goes first, so that surplus ones grow cold."""
        while self.takers and self.ready:
            waiting = self.takers.popleft()
            if not waiting.done():
                box = self.ready.pop()
                self.used.add(box)
                waiting.set_result(box)

    def add(self, box: Sandbox) -> None:
        """Takes in a box that is being made."""
        self.made += 1
        self.boxes.add(box)
        self.pending.add(box)

    def shelve(self, box: Sandbox) -> bool:
        """Makes a pending box ready, because a worker waits in it. False if the box is not pending."""
        if box not in self.pending:
            return False
        self.pending.remove(box)
        self.ready.append(box)
        return True

    def release(self, box: Sandbox) -> bool:
        """Ends a use. The box's next worker is on its way, or was ready before the use was over: True."""
        if box in self.used:
            self.used.remove(box)
            if not box.doomed:
                self.pending.add(box)
        return bool(box.streams) and self.shelve(box)

    def forget(self, box: Sandbox) -> None:
        """Gives a box that is dead, or to die, to nobody any more. Idempotent."""
        self.pending.discard(box)
        self.used.discard(box)
        if box in self.ready:
            self.ready.remove(box)

    def target(self, now: float, spare: int, most: int) -> int:
        """Number of boxes that there should be: as many as were used at once lately, and `spare` more."""
        self.demand.note(len(self.used), now)
        return min(self.demand.most + spare, most)

    def missing(self, target: int) -> int:
        """Number of boxes to make now."""
        return min(max(len(self.takers) - len(self.pending), target - len(self.boxes)), len(self.free))

    def give_up(self, target: int) -> list[Sandbox]:
        """Removes the ready boxes beyond `target`, the coldest first, for the caller to end."""
        surplus = self.ready[: max(0, len(self.boxes) - target)]
        for box in surplus:
            self.forget(box)
        return surplus

    def statistics(self) -> PoolStatistics:
        """Counts of the present moment."""
        return PoolStatistics(len(self.ready), len(self.used), len(self.pending), len(self.takers), self.made)


class ImageShelves:
    """Shelves of the images that are in use, made when somebody wants one. `numbers`: those of their boxes.

    All images together have as many boxes as one profile; who wants an image waits for no box that waits for work in
    another; an image that nobody uses any more has no box after a while.
    """

    def __init__(self, numbers: range) -> None:
        self._free = [*reversed(numbers)]
        self._shelves: dict[str, Shelf] = {}
        """The least recently used first."""
        self._used_at: dict[str, float] = {}

    def __iter__(self) -> Iterator[Shelf]:
        return iter(tuple(self._shelves.values()))

    def has(self, image_id: str) -> bool:
        """Says whether an image has a shelf."""
        return image_id in self._shelves

    @property
    def ready(self) -> int:
        """Boxes that wait for work, of all images."""
        return sum(len(shelf.ready) for shelf in self)

    def shelf(self, image: ImageMount, base: Shelf, now: float) -> Shelf:
        """The shelf of an image, which is used now; its boxes are forked from the zygote of `base`."""
        shelf = self._shelves.pop(image.image_id, None)
        if shelf is None:
            shelf = Shelf(base.profile, self._free, Demand(now), base.slot, image)
        self._shelves[image.image_id] = shelf
        self._used_at[image.image_id] = now
        return shelf

    def forked_from(self, slot: ZygoteSlot) -> Iterable[Shelf]:
        """Shelves whose boxes are forked from the zygote of a slot."""
        return [shelf for shelf in self if shelf.slot is slot]

    def spare(self, shelf: Shelf, spare: int, now: float) -> int:
        """Boxes of a shelf that are to wait for work beyond those used lately: `spare`, but for images of old."""
        if shelf.image is None or now - self._used_at[shelf.image.image_id] < _WARM_S:
            return spare
        return 0

    def victim(self, shelf: Shelf) -> Sandbox | None:
        """A box that waits for work in the image that was used longest ago, removed from its shelf for the caller to
        end, if takers of `shelf` can't get one otherwise."""
        if shelf.image is None or self._free or len(shelf.takers) <= len(shelf.pending):
            return None
        for other in self:
            if other is not shelf and other.ready:
                box = other.ready[0]
                other.forget(box)
                return box
        return None

    def left_waiting(self, shelf: Shelf) -> Iterable[Shelf]:
        """Other images whose takers wait for a box that nobody makes, now that one of `shelf` has given its number
        back."""
        if shelf.image is None:
            return []
        return [other for other in self if other is not shelf and len(other.takers) > len(other.pending)]

    def forget_idle(self) -> None:
        """Drops the shelves that have nothing."""
        for image_id in [image_id for image_id, shelf in self._shelves.items() if shelf.idle]:
            del self._shelves[image_id], self._used_at[image_id]
