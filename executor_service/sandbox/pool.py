"""All boxes of the server: makes them ahead of need, hands them out, takes them back; a shelf for each profile.

A box is *made* (takes tens of milliseconds), then *ready*, then *used*, then *cleared* (takes a few), then ready again.
Takers are served first in, first out. The number of boxes follows what was used at once lately, with some spare ones;
the box that was used last is taken first, so that those beyond need grow cold and are given up.

Invariants: whoever takes a box has it alone until everything that ran in it is dead; no more than `most` boxes of a
profile are alive; a taker that gave up gets nothing; when the block is left, no zygote, box or program of this server
is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType

from executor_service.cleanup import to_the_end
from executor_service.model import IsolationLevel, Limits
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.host import Host
from executor_service.sandbox.lease_page import LeasePage
from executor_service.sandbox.report import Plan, SandboxFailure, ZygoteEnded
from executor_service.sandbox.sandbox import Sandbox
from executor_service.sandbox.shelf import Demand, ImageShelves, PoolStatistics, Shelf
from executor_service.sandbox.zygote import Profile, Zygote
from fairbox.clock import Clock

_log = logging.getLogger(__name__)
_READY_WITHIN_S = 30.0
"""A box is made in milliseconds; where it takes this long, the machine is overloaded, and the run is our failure."""
_LOADED_WITHIN_S = 120.0
"""The same where the profile has to be loaded first."""
_TICK_S = 5.0
_BACKOFF_S, _BACKOFF_MOST_S = 0.1, 2.0
"""Between attempts to make a box where the last ones failed: this times their number, up to this."""
_RELOAD_S, _RELOAD_MOST_S = 2.0, 300.0
"""Between attempts to load a profile, doubled up to this: each costs seconds of CPU time."""
_FAILURES = 3
"""So many boxes in a row that can't be made are a reason to tell those who wait."""


class SandboxPool:
    """`async with SandboxPool(...) as pool, pool.take(plan) as sandbox: report = await sandbox.run()`.

    The first profile is loaded when the block is entered; the others according to their settings."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        *,
        profiles: Sequence[Profile],
        env: Mapping[str, str],
        limits: Limits,
        spare: int,
        most: int,
    ) -> None:
        self._host = host
        self._clock = clock
        self._env = env
        self._limits = limits
        self._spare = spare
        self._most = most
        self._shelves: dict[str, Shelf] = {}
        for index, profile in enumerate(profiles):
            numbers = range(index * most, (index + 1) * most)
            self._shelves[profile.name] = Shelf(profile, [*reversed(numbers)], Demand(clock.now()))
        self._first = next(iter(self._shelves.values()))
        self.images = ImageShelves(range(len(profiles) * most, (len(profiles) + 1) * most))
        """Boxes of images."""
        self.leases = LeasePage(most * (len(profiles) + 1))
        """Until when work under leases may run, and where there is some."""
        self._tasks = asyncio.TaskGroup()
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = False

    async def __aenter__(self) -> SandboxPool:
        await self._tasks.__aenter__()
        for shelf in self._shelves.values():
            if shelf.profile.ahead or shelf is self._first:
                shelf.slot.wanted.set()
            self._keepers.append(self._tasks.create_task(self._keep(shelf), name=f"zygote {shelf.profile.name}"))
        self._keepers.append(self._tasks.create_task(self._tick(), name="boxes"))
        try:
            await self._first.slot.tried.wait()
            if self._first.slot.failure is not None:
                raise self._first.slot.failure
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        await to_the_end(self._close())
        for task in self._keepers:
            task.cancel()  # the zygotes end with them
        await self._tasks.__aexit__(None, None, None)
        self.leases.close()

    async def _close(self) -> None:
        for shelf in (*self._shelves.values(), *self.images):
            boxes = tuple(shelf.boxes)
            for box in boxes:
                box.kill()
            for box in boxes:
                await box.close()

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """All, by name."""
        return {name: shelf.profile for name, shelf in self._shelves.items()}

    def loaded(self, name: str) -> bool:
        """Says whether a profile can be used at once. If not, starts to load it."""
        self._shelves[name].slot.wanted.set()
        return self._shelves[name].slot.zygote is not None

    def packages(self, name: str) -> tuple[str, ...]:
        """Packages that a profile has loaded; empty before it is loaded, and without those that are not installed."""
        zygote = self._shelves[name].slot.zygote
        if zygote is None:
            return ()
        return tuple(each for each in zygote.profile.packages if each not in zygote.missing)

    @property
    def level(self) -> IsolationLevel:
        """Isolation between the users of the boxes."""
        return self._host.level

    def statistics(self) -> Mapping[str, PoolStatistics]:
        """Boxes by profile."""
        return {name: shelf.statistics() for name, shelf in self._shelves.items()}

    def take(self, plan: Plan) -> _Taken:
        """A sandbox that has what `plan` says and is ready to run it, for a block. SandboxFailure on entering it when
        there is none."""
        return _Taken(self, plan)

    async def _taken(self, plan: Plan) -> SandboxRun:
        shelf = self._shelf(plan)
        shelf.slot.wanted.set()
        box = await self._box(shelf)
        sandbox = SandboxRun(self._host, box, plan)
        try:
            return await sandbox.__aenter__()
        except BaseException:
            self._release(shelf, box)
            raise

    def _shelf(self, plan: Plan) -> Shelf:
        shelf = self._shelves[plan.profile]
        return shelf if plan.image is None else self.images.shelf(plan.image, shelf, self._clock.now())

    async def _box(self, shelf: Shelf) -> Sandbox:
        if shelf.slot.zygote is None and shelf.slot.failure is not None:
            raise shelf.slot.failure
        waiting = shelf.join()
        self._serve(shelf)
        if waiting.done():
            return waiting.result()  # the usual case
        try:
            async with asyncio.timeout(_READY_WITHIN_S if shelf.slot.zygote else _LOADED_WITHIN_S):
                return await waiting
        except BaseException as error:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._release(shelf, waiting.result())  # assigned in the moment in which its taker gave up
            if isinstance(error, TimeoutError):
                text = f"no box of profile {shelf.profile.name!r} was ready in time"
                raise shelf.slot.failure or SandboxFailure("set-up", 0, text, started=False) from None
            raise
        finally:
            shelf.leave(waiting)

    def _release(self, shelf: Shelf, box: Sandbox) -> None:
        if shelf.release(box):
            self._serve(shelf)

    def _serve(self, shelf: Shelf) -> None:
        """Gives takers what is ready, and makes what is missing."""
        shelf.assign()
        target = self._target(shelf)
        if shelf.slot.zygote is not None and not self._closing:
            for _ in range(shelf.missing(target)):
                self._make(shelf, shelf.slot.zygote)
            if (box := self.images.victim(shelf)) is not None:
                box.kill()

    def _target(self, shelf: Shelf) -> int:
        now = self._clock.now()
        return shelf.target(now, self.images.spare(shelf, self._spare, now), self._most)

    def _make(self, shelf: Shelf, zygote: Zygote) -> None:
        box = Sandbox(
            self._host,
            zygote,
            shelf.free.pop(),
            self.leases,
            shelf.image,
            disk_bytes=self._limits.disk_bytes,
            memory_bytes=self._limits.memory_bytes,
            processes=self._limits.processes,
            on_ready=lambda box: self._ready(shelf, box),
            on_gone=lambda box: self._gone(shelf, box),
        )
        shelf.add(box)
        self._tasks.create_task(self._open(box), name=f"box {box.number}")

    async def _open(self, box: Sandbox) -> None:
        try:
            await box.open()
        except SandboxFailure as failure:
            box.failure = failure
            box.kill()

    def _ready(self, shelf: Shelf, box: Sandbox) -> None:
        shelf.failures = 0
        if shelf.shelve(box):
            self._serve(shelf)

    def _gone(self, shelf: Shelf, box: Sandbox) -> None:
        if self._closing:
            return
        shelf.forget(box)
        if box.failure is not None and not box.failure.started:
            shelf.failures += 1
            _log.error("box %d of %s: %s", box.number, box.profile, box.failure)
        self._tasks.create_task(self._bury(shelf, box), name=f"end of box {box.number}")

    async def _bury(self, shelf: Shelf, box: Sandbox) -> None:
        await box.close()
        if shelf.failures:
            await asyncio.sleep(min(_BACKOFF_S * shelf.failures, _BACKOFF_MOST_S))
        shelf.boxes.remove(box)
        shelf.free.append(box.number)
        # Whoever waits gets a box of the next zygote; where none can be loaded, `_keep` tells them.
        if shelf.failures >= _FAILURES and box.failure is not None and not isinstance(box.failure, ZygoteEnded):
            shelf.failures = 0
            shelf.refuse(box.failure)
        # Its number may have been freed for a box of another image, and is not for one that nobody waits for.
        for other in self.images.left_waiting(shelf):
            self._serve(other)
        self._serve(shelf)

    async def _keep(self, shelf: Shelf) -> None:
        """Loads a profile once it is wanted, and again when its zygote has died; the boxes died with it."""
        pause_s = _RELOAD_S
        with contextlib.suppress(asyncio.CancelledError):
            await shelf.slot.wanted.wait()
            while True:
                try:
                    async with Zygote(self._host, shelf.profile, self._env) as zygote:
                        self._loaded(shelf, zygote)
                        pause_s = _RELOAD_S
                        await zygote.ended()
                        shelf.slot.zygote = None
                    _log.error("the zygote of %s has died; it is started again", shelf.profile.name)
                except SandboxFailure as failure:
                    if shelf.slot.tried.is_set() or shelf is not self._first:
                        _log.error("profile %s can't be loaded: %s", shelf.profile.name, failure)
                    shelf.slot.failure = failure
                    shelf.slot.tried.set()
                    shelf.refuse(failure)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _RELOAD_MOST_S)

    def _loaded(self, shelf: Shelf, zygote: Zygote) -> None:
        shelf.slot.zygote, shelf.slot.failure = zygote, None
        shelf.slot.tried.set()
        for each in (shelf, *self.images.forked_from(shelf.slot)):
            each.failures = 0
            self._serve(each)

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_TICK_S)
                for shelf in (*self._shelves.values(), *self.images):
                    self._fit(shelf)
                self.images.forget_idle()

    def _fit(self, shelf: Shelf) -> None:
        """Gives up what is not needed, or makes what is missing."""
        surplus = shelf.give_up(self._target(shelf))
        for box in surplus:
            box.kill()
        if not surplus:
            self._serve(shelf)


class _Taken:
    """A block with a sandbox: without a generator, which every run would pay for."""

    def __init__(self, boxes: SandboxPool, plan: Plan) -> None:
        self._boxes = boxes
        self._plan = plan
        self._sandbox: SandboxRun | None = None

    async def __aenter__(self) -> SandboxRun:
        self._sandbox = await self._boxes._taken(self._plan)
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sandbox is not None
        try:
            await self._sandbox.__aexit__(kind, error, trace)
        finally:
            self._boxes._release(self._boxes._shelf(self._plan), self._sandbox.box)
