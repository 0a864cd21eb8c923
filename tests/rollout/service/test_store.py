"""The store by itself: what it keeps over a restart, and what it does when it can't."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rollout.journal import Durability, JournalError
from rollout.service.book import Place
from rollout.service.store import NAME, IdReused, Submitted, TrajectoryStore


def task(name: str, text: str = "") -> Submitted:
    return Submitted(name, f"digest of {text}".encode(), f"task {name} {text}".encode())


def opened(folder: Path, known_ids: int = 100) -> TrajectoryStore:
    return TrajectoryStore(folder, Durability.PROCESS, known_ids=known_ids)


async def test_everything_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        entries = await store.add("t", [task(name) for name in "abcd"])
        assert [entry.number for entry in entries] == [1, 2, 3, 4]
        await store.end(3, b"result of c")
        await store.end(1, b"result of a")
        await store.forget([4])
    async with opened(tmp_path) as store:
        found = await store.entries()
        assert [(entry.id, entry.place) for entry in found] == [
            ("b", Place.QUEUED),
            ("c", Place.ENDED),
            ("a", Place.ENDED),
        ]
        assert await store.task(2) == task("b")
        assert await store.result(3) == (b"result of c", task("c").task)
        assert await store.result(4) is None
        await store.requeue(3)
        await store.requeue(4)  # it is gone
        assert await store.result(3) is None
        assert [(entry.id, entry.place) for entry in await store.entries()] == [
            ("b", Place.QUEUED),
            ("c", Place.QUEUED),
            ("a", Place.ENDED),
        ]
        assert [entry.id for entry in await store.add("t", [task(name) for name in "abcde"])] == ["e"]


async def test_a_request_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.add("t", [task("a")])
        with pytest.raises(IdReused) as info:
            await store.add("t", [task("b"), task("a", "other")])
        assert info.value.ids == ("a",)
        assert len(await store.entries()) == 1
        assert len(await store.add("another tenant", [task("a", "other")])) == 1


async def test_the_oldest_ids_are_let_go_of(tmp_path: Path) -> None:
    async with opened(tmp_path, known_ids=10) as store:
        for number in range(1, 41):
            await store.add("t", [task(str(number))])
            await store.end(number, b"")
            await store.forget([number])
        assert len(await store.add("t", [task(str(number)) for number in range(31, 41)])) == 0
        assert len(await store.add("t", [task("1")])) == 1


async def test_a_result_that_comes_too_late_is_not_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.add("t", [task("a")])
        await store.forget([1])
        await store.end(1, b"late")
        assert await store.result(1) is None
        assert not await store.entries()


async def test_one_process_has_it(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(JournalError, match="another process uses it"):
            async with opened(tmp_path):
                pass


async def test_nothing_is_written_after_a_failure(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.add("t", [task("a")])
    store = opened(tmp_path)
    async with store:

        def fail(_: sqlite3.Connection) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with pytest.raises(JournalError, match=f"{NAME}: database or disk is full"):
            await store._run(fail)
        with pytest.raises(JournalError, match="database or disk is full"):
            await store.add("t", [task("b")])
    async with opened(tmp_path) as store:
        assert [entry.id for entry in await store.entries()] == ["a"]


async def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("no database" * 100)
    with pytest.raises(JournalError, match="file is not a database"):
        async with opened(tmp_path):
            pass
