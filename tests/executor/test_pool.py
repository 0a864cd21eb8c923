"""Boxes are made, handed out and given up correctly in any order of events. The test supplies the boxes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from executor_service.model import Limits
from executor_service.sandbox import pool as module
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import ImageMount
from executor_service.sandbox.shelf import PoolStatistics, Shelf
from executor_service.sandbox.zygote import Profile
from fairbox.testing import ManualClock

NAME = "python-base"


class FakeBox:
    """Becomes ready, and dies, when the test says so."""

    alive: set[int]

    def __init__(
        self, host: Any, zygote: Any, number: int, leases: Any, image: Any, *, on_ready: Any, on_gone: Any, **_: Any
    ) -> None:
        assert number not in self.alive
        self.alive.add(number)
        self.number, self.profile = number, NAME
        self.on_ready, self.on_gone = on_ready, on_gone
        self.streams: list[int] = []
        self.failure = None
        self.doomed = False
        self.dead = asyncio.Event()

    async def open(self) -> None:
        pass

    def become_ready(self) -> None:
        self.streams = [0]
        if not self.doomed:
            self.on_ready(self)

    def kill(self) -> None:
        if not self.doomed:
            self.doomed = True
            self.on_gone(self)

    async def close(self) -> None:
        self.kill()
        await self.dead.wait()
        self.alive.discard(self.number)


class FakeZygote:
    profile = Profile(NAME)
    missing = ()

    def __init__(self, *_: Any) -> None:
        pass

    async def __aenter__(self) -> FakeZygote:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ended(self) -> None:
        await asyncio.Event().wait()


class Pool:
    """The boxes of one profile."""

    def __init__(self, boxes: SandboxPool, clock: ManualClock) -> None:
        self.boxes, self.clock = boxes, clock
        [self.shelf] = boxes._shelves.values()

    @property
    def counts(self) -> PoolStatistics:
        return self.boxes.statistics()[NAME]

    def all(self, group: str = "boxes") -> list[FakeBox]:
        return sorted(cast("set[FakeBox]", getattr(self.shelf, group)), key=lambda box: box.number)

    async def take(self) -> asyncio.Task[FakeBox]:
        task = asyncio.create_task(cast("Any", self.boxes._box(self.shelf)))
        await asyncio.sleep(0)
        return task

    async def bury(self, box: FakeBox) -> None:
        box.kill()
        box.dead.set()
        for _ in range(5):
            await asyncio.sleep(0)

    def release(self, box: FakeBox) -> None:
        box.streams = []
        self.boxes._release(self.shelf, cast("Any", box))

    def tick(self, now: float) -> None:
        self.clock.advance(now - self.clock.now())
        self.boxes._fit(self.shelf)


@asynccontextmanager
async def opened(monkeypatch: pytest.MonkeyPatch, *, spare: int, most: int) -> AsyncIterator[Pool]:
    monkeypatch.setattr(FakeBox, "alive", set(), raising=False)
    monkeypatch.setattr(module, "Sandbox", FakeBox)
    monkeypatch.setattr(module, "Zygote", FakeZygote)
    clock = ManualClock()
    settings: dict[str, Any] = {"profiles": [FakeZygote.profile], "env": {}, "limits": Limits()}
    async with SandboxPool(cast("Any", None), clock, spare=spare, most=most, **settings) as boxes:
        pool = Pool(boxes, clock)
        yield pool
        for box in pool.all():
            box.dead.set()


async def test_spare_boxes_are_made_ahead_and_taken_last_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch, spare=2, most=4) as pool:
        assert [box.number for box in pool.all()] == [0, 1]
        for box in pool.all():
            box.become_ready()
        assert (await (await pool.take())).number == 1
        assert [box.number for box in pool.all()] == [0, 1, 2]
        assert pool.counts == PoolStatistics(ready=1, used=1, pending=1, waiting=0, made_total=3)


async def test_a_taker_that_gave_up_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch, spare=0, most=1) as pool:
        first, second, third = [await pool.take() for _ in range(3)]
        [box] = pool.all()
        first.cancel()
        box.become_ready()  # before the first has left the queue
        second.cancel()  # after it was given the box
        assert await third is box
        assert pool.counts == PoolStatistics(ready=0, used=1, pending=0, waiting=0, made_total=1)


async def test_boxes_beyond_need_are_given_up_after_two_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch, spare=1, most=8) as pool:
        takers = [await pool.take() for _ in range(3)]
        for box in pool.all():
            box.become_ready()
        for box in await asyncio.gather(*takers):
            pool.release(box)
            box.become_ready()
        while pending := pool.all("pending"):
            pending[0].become_ready()
        pool.tick(15.0)
        pool.tick(33.0)
        assert pool.counts.ready == 4
        pool.tick(93.0)
        assert pool.counts.ready == 1


@pytest.mark.parametrize("seed", range(40))
async def test_any_order_of_events_leaves_nobody_waiting_for_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box has one user, takers come in order, the bound holds, nothing is forgotten."""
    chance = random.Random(seed)
    async with opened(monkeypatch, spare=1, most=3) as pool:
        waiting: list[asyncio.Task[FakeBox]] = []
        used: list[FakeBox] = []
        for _ in range(150):
            match chance.choice(("take", "give up", "ready", "ready", "release", "die", "bury", "tick")):
                case "take":
                    waiting.append(await pool.take())
                case "give up" if waiting:
                    waiting.pop(chance.randrange(len(waiting))).cancel()
                case "ready" if pending := pool.all("pending"):
                    chance.choice(pending).become_ready()
                case "release" if used:
                    box = used.pop(chance.randrange(len(used)))
                    pool.release(box)
                case "die" if living := [box for box in pool.all() if not box.doomed]:
                    chance.choice(living).kill()
                case "bury" if doomed := [box for box in pool.all() if box.doomed]:
                    await pool.bury(chance.choice(doomed))
                case "tick":
                    pool.tick(pool.clock.now() + chance.uniform(0, 40))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            served = [task.done() for task in waiting]
            assert served == sorted(served, reverse=True), "one was served before those who came before it"
            while waiting and waiting[0].done():
                box = waiting.pop(0).result()
                assert box not in used
                used.append(box)
            counts = pool.counts
            assert len(pool.all()) <= 3
            assert counts.waiting == len(waiting)
            assert counts.used == sum(not box.doomed for box in used)
            assert not (counts.waiting and counts.ready)
            if counts.waiting and not counts.used:
                assert counts.pending or any(box.doomed for box in pool.all()), "nothing is on the way"
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("seed", range(40))
async def test_who_wants_an_image_gets_a_box_whatever_others_have(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five images share three numbers: boxes that wait for work in one end for those who want another."""
    chance, images = random.Random(seed), [ImageMount(str(number), (), "", 0) for number in range(5)]
    async with opened(monkeypatch, spare=1, most=3) as pool:
        used: list[tuple[Shelf, FakeBox]] = []
        waiting: list[tuple[Shelf, asyncio.Task[FakeBox]]] = []

        def boxes(group: str) -> list[tuple[Shelf, FakeBox]]:
            found = [(shelf, cast("FakeBox", box)) for shelf in pool.boxes.images for box in getattr(shelf, group)]
            return sorted(found, key=lambda each: each[1].number)

        async def take() -> None:
            shelf = pool.boxes.images.shelf(chance.choice(images), pool.shelf, pool.clock.now())
            waiting.append((shelf, asyncio.create_task(cast("Any", pool.boxes._box(shelf)))))
            await asyncio.sleep(0)

        async def go_on() -> None:
            """Something that happens by itself: a box becomes ready, is released, or is dead at last."""
            for each in [each for each in waiting if each[1].done()]:
                waiting.remove(each)
                used.append((each[0], await each[1]))
            assert len({box.number for _, box in boxes("boxes")}) <= 3
            match chance.choice(("ready", "release", "bury", "tick")):
                case "ready" if pending := boxes("pending"):
                    chance.choice(pending)[1].become_ready()
                case "release" if used:
                    shelf, box = used.pop(chance.randrange(len(used)))
                    box.streams = []
                    pool.boxes._release(shelf, cast("Any", box))
                case "bury" if doomed := [box for _, box in boxes("boxes") if box.doomed]:
                    await pool.bury(chance.choice(doomed))
                case "tick":
                    pool.clock.advance(chance.choice((1.0, 40.0)))
                    for shelf in pool.boxes.images:
                        pool.boxes._fit(shelf)
                    pool.boxes.images.forget_idle()
            await asyncio.sleep(0)

        for _ in range(100):
            await (take() if chance.random() < 0.3 else go_on())
        for _ in range(2000):
            await go_on()
        assert not waiting
        assert not used
        assert len(boxes("boxes")) <= 3
        for _, box in boxes("boxes"):
            box.dead.set()
