"""All boxes of the server: makes them ahead of need, hands them out, takes them back.

A thin shell around `core.pool`, one for each profile. Invariants: whoever takes a box has it alone until everything
that ran in it is dead; when the block is left, no template, box or program of this server is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from executor_service.cleanup import to_the_end
from executor_service.core.pool import Action, Assign, Destroy, Make, PoolStatistics, WarmPool
from executor_service.model import IsolationLevel, Limits
from executor_service.sandbox.box import Box
from executor_service.sandbox.host import Host
from executor_service.sandbox.report import Plan, SandboxFailure
from executor_service.sandbox.template import Profile, Template
from executor_service.sandbox.use import Sandbox
from fairbox.clock import Clock

__all__ = ["Boxes"]

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


@dataclass(eq=False, slots=True)
class _Shelf:
    """The boxes of one profile."""

    profile: Profile
    pool: WarmPool
    template: Template | None = None
    """None: not loaded, or being loaded."""
    failure: SandboxFailure | None = None
    """Why the last attempt to load it failed."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    boxes: dict[int, Box] = field(default_factory=dict)
    postponed: list[int] = field(default_factory=list)
    """Boxes to be made once the template is there."""
    takers: dict[int, asyncio.Future[Box]] = field(default_factory=dict)
    failures: int = 0


class Boxes:
    """`async with Boxes(...) as boxes, boxes.take(plan) as sandbox: report = await sandbox.run()`.

    The first profile is loaded when the block is entered; the others according to their settings.
    """

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
        self._shelves = {
            profile.name: _Shelf(profile, WarmPool(spare=spare, most=most, first=index * most))
            for index, profile in enumerate(profiles)
        }
        self._tasks = asyncio.TaskGroup()
        self._keepers: list[asyncio.Task[None]] = []
        self._takers = 0
        self._closing = False

    async def __aenter__(self) -> Boxes:
        await self._tasks.__aenter__()
        first = next(iter(self._shelves.values()))
        for shelf in self._shelves.values():
            if shelf.profile.ahead or shelf is first:
                shelf.wanted.set()
            self._keepers.append(self._tasks.create_task(self._keep(shelf), name=f"template {shelf.profile.name}"))
        self._keepers.append(self._tasks.create_task(self._tick(), name="boxes"))
        try:
            await first.tried.wait()
            if first.failure is not None:
                raise first.failure
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        await to_the_end(self._close())
        for task in self._keepers:
            task.cancel()  # the templates end with them
        await self._tasks.__aexit__(None, None, None)

    async def _close(self) -> None:
        for shelf in self._shelves.values():
            for box in shelf.boxes.values():
                box.kill()
            for box in shelf.boxes.values():
                await box.close()

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """All, by name."""
        return {name: shelf.profile for name, shelf in self._shelves.items()}

    def loaded(self, name: str) -> bool:
        """Whether a profile can be used at once. If not, it is loaded from now on."""
        self._shelves[name].wanted.set()
        return self._shelves[name].template is not None

    def packages(self, name: str) -> tuple[str, ...]:
        """What a profile has loaded; empty before it is loaded, and without what is not installed."""
        template = self._shelves[name].template
        if template is None:
            return ()
        return tuple(each for each in template.profile.packages if each not in template.missing)

    @property
    def level(self) -> IsolationLevel:
        """What separates those who use them."""
        return self._host.level

    def statistics(self) -> Mapping[str, PoolStatistics]:
        """Boxes by profile."""
        return {name: shelf.pool.statistics() for name, shelf in self._shelves.items()}

    def take(self, plan: Plan) -> _Taken:
        """A sandbox that has what `plan` says and is ready to run it, for a block. SandboxFailure on entering it when
        there is none."""
        return _Taken(self, plan)

    async def _taken(self, plan: Plan) -> Sandbox:
        shelf = self._shelves[plan.profile]
        shelf.wanted.set()
        box = await self._box(shelf)
        sandbox = Sandbox(self._host, box, plan)
        try:
            return await sandbox.__aenter__()
        except BaseException:
            self._release(plan, sandbox)
            raise

    def _release(self, plan: Plan, sandbox: Sandbox) -> None:
        shelf, box = self._shelves[plan.profile], sandbox.box
        shelf.pool.released(box.number)
        if box.doomed:
            shelf.pool.lost(box.number)
        elif box.streams:  # the next worker was ready before this use was over
            self._act(shelf, shelf.pool.ready(box.number, self._clock.now()))

    async def _box(self, shelf: _Shelf) -> Box:
        if shelf.template is None and shelf.failure is not None:
            raise shelf.failure
        self._takers += 1
        taker = self._takers
        waiting: asyncio.Future[Box] = asyncio.get_running_loop().create_future()
        shelf.takers[taker] = waiting
        self._act(shelf, shelf.pool.take(taker, self._clock.now()))
        if waiting.done() and waiting.exception() is None:
            del shelf.takers[taker]
            return waiting.result()  # the usual case
        try:
            async with asyncio.timeout(_READY_WITHIN_S if shelf.template else _LOADED_WITHIN_S):
                return await waiting
        except BaseException as error:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._return(shelf, waiting.result())
            if isinstance(error, TimeoutError):
                text = f"no box of profile {shelf.profile.name!r} was ready in time"
                raise shelf.failure or SandboxFailure("set-up", 0, text, started=False) from None
            raise
        finally:
            del shelf.takers[taker]
            shelf.pool.give_up(taker)

    def _return(self, shelf: _Shelf, box: Box) -> None:
        """A box that was assigned in the moment in which its taker gave up."""
        shelf.pool.released(box.number)
        self._act(shelf, shelf.pool.ready(box.number, self._clock.now()))

    def _act(self, shelf: _Shelf, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Assign(taker, number):
                    waiting = shelf.takers.get(taker)  # type: ignore[call-overload]
                    if waiting is None or waiting.done():
                        self._return(shelf, shelf.boxes[number])
                    else:
                        waiting.set_result(shelf.boxes[number])
                case Destroy(number):
                    shelf.boxes[number].kill()
                case Make(number):
                    self._make(shelf, number)

    def _make(self, shelf: _Shelf, number: int) -> None:
        if self._closing:
            return
        if shelf.template is None:
            shelf.postponed.append(number)
            return
        box = Box(
            self._host,
            shelf.template,
            number,
            disk_bytes=self._limits.disk_bytes,
            memory_bytes=self._limits.memory_bytes,
            processes=self._limits.processes,
            on_ready=lambda box: self._ready(shelf, box),
            on_gone=lambda box: self._gone(shelf, box),
        )
        shelf.boxes[number] = box
        try:
            box.open()
        except SandboxFailure as failure:
            box.failure = failure
            box.kill()

    def _ready(self, shelf: _Shelf, box: Box) -> None:
        shelf.failures = 0
        self._act(shelf, shelf.pool.ready(box.number, self._clock.now()))

    def _gone(self, shelf: _Shelf, box: Box) -> None:
        if self._closing:
            return
        shelf.pool.lost(box.number)
        if box.failure is not None and not box.failure.started:
            shelf.failures += 1
            _log.error("box %d of %s: %s", box.number, box.profile, box.failure)
        self._tasks.create_task(self._bury(shelf, box), name=f"end of box {box.number}")

    async def _bury(self, shelf: _Shelf, box: Box) -> None:
        await box.close()
        if shelf.failures:
            await asyncio.sleep(min(_BACKOFF_S * shelf.failures, _BACKOFF_MOST_S))
        del shelf.boxes[box.number]
        if shelf.failures >= _FAILURES and box.failure is not None:
            shelf.failures = 0
            _refuse(shelf, box.failure)
        if not self._closing:
            self._act(shelf, shelf.pool.gone(box.number, self._clock.now()))

    async def _keep(self, shelf: _Shelf) -> None:
        """Loads a profile once it is wanted, and again when its template has died; the boxes died with it."""
        pause_s = _RELOAD_S
        with contextlib.suppress(asyncio.CancelledError):
            await shelf.wanted.wait()
            while True:
                try:
                    async with Template(self._host, shelf.profile, self._env) as template:
                        self._loaded(shelf, template)
                        pause_s = _RELOAD_S
                        await template.ended()
                        shelf.template = None
                    _log.error("the template of %s has died; it is started again", shelf.profile.name)
                except SandboxFailure as failure:
                    if shelf.tried.is_set() or shelf is not next(iter(self._shelves.values())):
                        _log.error("profile %s can't be loaded: %s", shelf.profile.name, failure)
                    shelf.failure = failure
                    shelf.tried.set()
                    _refuse(shelf, failure)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _RELOAD_MOST_S)

    def _loaded(self, shelf: _Shelf, template: Template) -> None:
        shelf.template, shelf.failure = template, None
        shelf.tried.set()
        postponed, shelf.postponed = shelf.postponed, []
        for number in postponed:
            self._make(shelf, number)
        self._act(shelf, shelf.pool.tick(self._clock.now()))

    async def _tick(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_TICK_S)
                for shelf in self._shelves.values():
                    if shelf.template is not None:
                        self._act(shelf, shelf.pool.tick(self._clock.now()))


class _Taken:
    """A block with a sandbox: without a generator, which every run would pay for."""

    def __init__(self, boxes: Boxes, plan: Plan) -> None:
        self._boxes = boxes
        self._plan = plan
        self._sandbox: Sandbox | None = None

    async def __aenter__(self) -> Sandbox:
        self._sandbox = await self._boxes._taken(self._plan)
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sandbox is not None
        try:
            await self._sandbox.__aexit__(kind, error, trace)
        finally:
            self._boxes._release(self._plan, self._sandbox)


def _refuse(shelf: _Shelf, failure: SandboxFailure) -> None:
    """Those who wait are told why, and need not wait any longer."""
    for waiting in shelf.takers.values():
        if not waiting.done():
            waiting.set_exception(failure)
