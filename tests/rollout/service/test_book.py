"""The book of trajectories, by itself."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rollout.service.book import BookEntry, BookFull, Delivery, Place, StreamReplaced, TrajectoryBook

TENANTS = ("", "a", "b")


class Simulated:
    """A book, and what its users know of it."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.concurrency, self.most = self.draws.randint(1, 4), self.draws.randint(1, 12)
        self.book = TrajectoryBook(concurrency=self.concurrency, max_trajectories=self.most)
        self.numbers = 0
        self.here: dict[int, BookEntry] = {}
        """Neither acknowledged nor cancelled."""
        self.begun: list[BookEntry] = []
        self.streams: dict[str, Delivery] = {}
        self.given: Counter[tuple[Delivery, int]] = Counter()
        """(stream, number)."""

    def step(self) -> None:
        actions = (self.submit, self.begin, self.begin, self.end, self.end, self.open, self.close, self.give)
        self.draws.choice((*actions, self.give, self.acknowledge, self.cancel, self.requeue))()
        self.check()

    def submit(self) -> None:
        tenant, count = self.draws.choice(TENANTS), self.draws.randint(1, 4)
        mine = sum(entry.tenant == tenant for entry in self.here.values())
        if mine + count > self.most:
            with pytest.raises(BookFull, match="have no room"):
                self.book.reserve(tenant, count)
            return
        self.book.reserve(tenant, count)
        kept = count - self.draws.randint(0, 1)  # the others were known
        entries = [BookEntry(self.numbers + n, tenant, f"id{self.numbers + n}") for n in range(1, kept + 1)]
        self.numbers += kept
        self.book.add(entries)
        self.book.release(tenant, count)
        self.here |= {entry.number: entry for entry in entries}

    def begin(self) -> None:
        entry = self.book.begin()
        waiting = [each for each in self.here.values() if each.place is Place.QUEUED]
        if entry is None:
            assert not waiting or len(self.book.running) == self.concurrency
            return
        assert entry.number in self.here
        assert not any(each.tenant == entry.tenant and each.number < entry.number for each in waiting)
        self.begun.append(entry)

    def end(self) -> None:
        if self.book.running:
            self.book.ended(self.draws.choice(list(self.book.running)))

    def open(self) -> None:
        tenant = self.draws.choice(TENANTS)
        self.streams[tenant] = self.book.open(tenant, self.draws.randint(1, 3))

    def close(self) -> None:
        if self.streams:
            self.book.close(self.streams.pop(self.draws.choice(list(self.streams))))

    def give(self) -> None:
        for tenant, stream in self.streams.items():
            entry = self.book.give(stream)
            ended = [each for each in self.here.values() if each.tenant == tenant and each.place is Place.ENDED]
            if entry is None:
                assert len(stream.given) == stream.most or stream.given >= {each.number for each in ended}
                continue
            assert entry in ended
            self.given[stream, entry.number] += 1
            assert self.given[stream, entry.number] == 1

    def requeue(self) -> None:
        ended = [entry for entry in self.here.values() if entry.place is Place.ENDED]
        if ended:
            entry = self.draws.choice(ended)
            assert self.book.keeps(entry)
            assert self.book.requeue(entry)
            assert not self.book.keeps(entry)
            assert not self.book.requeue(entry)
            assert entry.place is Place.QUEUED
            for stream in self.streams.values():
                self.given.pop((stream, entry.number), None)

    def some(self) -> tuple[str, list[str]]:
        tenant = self.draws.choice(TENANTS)
        ids = [entry.id for entry in self.here.values() if entry.tenant == tenant]
        return tenant, [*self.draws.sample(ids, self.draws.randint(0, len(ids))), "unknown"]

    def acknowledge(self) -> None:
        tenant, ids = self.some()
        wanted = {n for n, entry in self.here.items() if entry.id in ids and entry.place is Place.ENDED}
        assert set(self.book.acknowledge(tenant, ids)) == wanted
        for number in wanted:
            del self.here[number]

    def cancel(self) -> None:
        tenant, ids = self.some()
        wanted = {number for number, entry in self.here.items() if entry.id in ids}
        assert set(self.book.cancel(tenant, ids)) == wanted
        for number in wanted:
            del self.here[number]

    def check(self) -> None:
        assert len(self.book.running) <= self.concurrency
        counts = self.book.counts()
        assert sum(each.queued + each.ended for each in counts.values()) <= len(self.here)
        for tenant, each in counts.items():
            places = Counter(entry.place for entry in self.here.values() if entry.tenant == tenant)
            assert each.ended == places[Place.ENDED]
            assert each.streaming == (tenant in self.streams)
            assert each.running >= places[Place.RUNNING]  # cancelled ones have yet to end


@pytest.mark.parametrize("block", range(4))
def test_whatever_happens_the_book_is_right(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        simulated = Simulated(seed)
        for _ in range(300):
            simulated.step()
        while simulated.book.running or simulated.book.begin() is not None:
            simulated.end()
        for stream in simulated.streams.values():
            simulated.book.close(stream)
        for tenant in TENANTS:
            simulated.book.cancel(tenant, [entry.id for entry in simulated.here.values() if entry.tenant == tenant])
        assert not simulated.book.counts()


def test_a_stream_that_comes_again_keeps_its_place_until_another_has_it() -> None:
    book = TrajectoryBook(concurrency=1, max_trajectories=9)
    for name in ("one", "one", "", "two", ""):
        assert book.streams(book.open("t", 8, name))
    for name in ("one", "two"):
        with pytest.raises(StreamReplaced):
            book.open("t", 8, name)
    book.close(book.open("t", 8, "three"))
    assert book.streams(book.open("t", 8, "one"))  # nobody is there any more


def test_tenants_take_turns() -> None:
    book = TrajectoryBook(concurrency=100, max_trajectories=100)
    book.add([BookEntry(n, "many", f"m{n}") for n in range(1, 6)])
    book.add([BookEntry(n, "few", f"f{n}") for n in range(6, 8)])
    begun = [book.begin() for _ in range(7)]
    assert [entry.id for entry in begun if entry is not None] == ["m1", "f6", "m2", "f7", "m3", "m4", "m5"]


def test_only_so_many_tenants_are_known() -> None:
    book = TrajectoryBook(concurrency=1, max_trajectories=5, max_tenants=2)
    for name in ("a", "b"):
        book.reserve(name, 1)
    with pytest.raises(BookFull, match="2 tenants have trajectories here, which is the most"):
        book.reserve("c", 1)
    book.release("a", 1)
    book.reserve("c", 1)
