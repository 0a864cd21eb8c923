"""The service's trajectories on disk, in SQLite: tasks and results until they are acknowledged, ids long after that.

Invariants: what a method has returned from is committed; tasks of a request are kept all or none; an id names one
trajectory of a tenant for as long as it is remembered. After a failure nothing more is written. The turns of those that
run are in the journal beside it.

All of SQLite runs in one thread of its own, never on the event loop.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from rollout.journal import Durability, JournalError, begun
from rollout.journal.store import opened
from rollout.service.book import BookEntry, Place

NAME = "trajectories.db"
KNOWN_IDS = 200_000
"""Ids that are remembered after their trajectories are gone: hours of a trainer that submits an id again because it did
not hear the answer."""
_TABLES = """
CREATE TABLE trajectories (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    digest BLOB NOT NULL,
    state TEXT NOT NULL,
    task BLOB,
    ending INTEGER,
    result BLOB,
    UNIQUE (tenant, id)
);
CREATE INDEX by_state ON trajectories (state, number);
CREATE INDEX by_ending ON trajectories (ending)
"""
_GONE = "gone"
"""State of those that were acknowledged or cancelled; the others are `Place`s, running ones being queued."""
_PRUNED = 10
"""Ids are let go of when a tenth of those that are remembered came: finding the oldest one reads all of them."""
Result = TypeVar("Result")


class IdReused(Exception):
    """Ids that were submitted before, with other tasks."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(", ".join(ids))
        self.ids = tuple(ids)


@dataclass(frozen=True, slots=True)
class PushedWeights:
    """Weights that a trainer gave the engine."""

    folder: str
    version: str
    before: tuple[str, ...] = ()
    """Versions that the engine had before, the oldest first."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task as it is to be kept."""

    id: str
    digest: bytes
    """By which the same task is known again."""
    task: bytes


class TrajectoryStore:
    """`async with TrajectoryStore(folder, durability) as store`. Its methods raise JournalError."""

    def __init__(self, folder: Path, durability: Durability, *, known_ids: int = KNOWN_IDS) -> None:
        self.path = folder / NAME
        self._durability = durability
        self._known_ids = known_ids
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trajectories")
        self._forgotten = 0
        """Since ids were last let go of."""
        self._connection: sqlite3.Connection | None = None
        self._failure: JournalError | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._run(lambda _: None)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._close))
        finally:
            self._thread.shutdown(wait=False)

    async def entries(self) -> list[BookEntry]:
        """Everything that is here: what is to be played in the order in which it came, then what has ended in the order
        in which it did."""
        return await self._run(_entries)

    async def unknown(self, tenant: str, tasks: Sequence[Submitted]) -> tuple[list[Submitted], list[str]]:
        """Tasks whose ids are not known, and ids of which nothing is left. Raises IdReused."""
        return await self._run(partial(_unknown, tenant=tenant, tasks=tasks))

    async def add(self, tenant: str, tasks: Sequence[Submitted]) -> list[BookEntry]:
        """Keeps tasks; those that are new. Raises IdReused, and then keeps none."""
        return await self._run(partial(_add, tenant=tenant, tasks=tasks))

    async def task(self, number: int) -> Submitted:
        """A task that has not ended, as it was kept."""
        return await self._run(partial(_task, number=number))

    async def end(self, number: int, result: bytes) -> None:
        """Keeps what a trajectory came to, beside its task."""
        await self._run(partial(_end, number=number, result=result))

    async def result(self, number: int) -> tuple[bytes, bytes] | None:
        """The result of a trajectory and its task; None: it was acknowledged or cancelled meanwhile."""
        return await self._run(partial(_result, number=number))

    async def requeue(self, number: int) -> None:
        """Lets go of the result of a trajectory, which is to be played again."""
        await self._run(partial(_requeue, number=number))

    async def forget(self, numbers: Sequence[int]) -> None:
        """Deletes all but the ids of these."""
        await self._run(partial(_forget, numbers=numbers))
        self._forgotten += len(numbers)
        if self._forgotten * _PRUNED >= self._known_ids:
            self._forgotten = 0
            await self._run(partial(_prune, known_ids=self._known_ids))

    async def weights(self) -> PushedWeights | None:
        """The weights that the engine was given last; None: it never was."""
        return await self._run(_weights)

    async def keep_weights(self, weights: PushedWeights) -> None:
        """Keeps where the engine's weights are, in place of those before."""
        await self._run(partial(_keep_weights, weights=weights))

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def _guarded(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        if self._failure is not None:
            raise self._failure
        try:
            if self._connection is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                about = None if begun(self.path) else {"kind": "trajectories"}
                self._connection, _ = opened(self.path, self._durability, about, _TABLES)
            with self._connection:  # what fails leaves nothing behind
                return work(self._connection)
        except (sqlite3.Error, OSError) as error:
            self._failure = JournalError(f"{self.path}: {getattr(error, 'strerror', None) or error}")
            raise self._failure from None

    def _close(self) -> None:
        self._failure = JournalError(f"{self.path}: is closed")
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _entries(connection: sqlite3.Connection) -> list[BookEntry]:
    select = "SELECT number, tenant, id, state FROM trajectories WHERE state = ? ORDER BY "
    waiting = connection.execute(select + "number", (Place.QUEUED,)).fetchall()
    ended = connection.execute(select + "ending", (Place.ENDED,)).fetchall()
    return [BookEntry(number, tenant, name, Place(state)) for number, tenant, name, state in [*waiting, *ended]]


def _unknown(
    connection: sqlite3.Connection, *, tenant: str, tasks: Sequence[Submitted]
) -> tuple[list[Submitted], list[str]]:
    new, gone, reused = [], [], []
    for task in tasks:
        row = connection.execute(
            "SELECT digest, state FROM trajectories WHERE tenant = ? AND id = ?", (tenant, task.id)
        ).fetchone()
        if row is None:
            new.append(task)
        elif row[0] != task.digest:
            reused.append(task.id)
        elif row[1] == _GONE:
            gone.append(task.id)
    if reused:
        raise IdReused(reused)
    return new, gone


def _add(connection: sqlite3.Connection, *, tenant: str, tasks: Sequence[Submitted]) -> list[BookEntry]:
    new, _ = _unknown(connection, tenant=tenant, tasks=tasks)
    found: list[BookEntry] = []
    connection.execute("BEGIN")
    for task in new:
        insert = "INSERT INTO trajectories (tenant, id, digest, state, task) VALUES (?, ?, ?, ?, ?)"
        cursor = connection.execute(insert, (tenant, task.id, task.digest, Place.QUEUED, task.task))
        assert cursor.lastrowid is not None
        found.append(BookEntry(cursor.lastrowid, tenant, task.id))
    return found


def _task(connection: sqlite3.Connection, *, number: int) -> Submitted:
    select = "SELECT id, digest, task FROM trajectories WHERE number = ?"
    name, digest, task = connection.execute(select, (number,)).fetchone()
    return Submitted(name, digest, task)


def _result(connection: sqlite3.Connection, *, number: int) -> tuple[bytes, bytes] | None:
    row = connection.execute("SELECT result, task FROM trajectories WHERE number = ?", (number,)).fetchone()
    return None if row is None or row[0] is None else row


def _requeue(connection: sqlite3.Connection, *, number: int) -> None:
    connection.execute("BEGIN")
    connection.execute(
        "UPDATE trajectories SET state = ?, result = NULL, ending = NULL WHERE number = ? AND state = ?",
        (Place.QUEUED, number, Place.ENDED),
    )


def _end(connection: sqlite3.Connection, *, number: int, result: bytes) -> None:
    connection.execute("BEGIN")
    connection.execute(
        "UPDATE trajectories SET state = ?, result = ?, "
        "ending = (SELECT COALESCE(MAX(ending), 0) + 1 FROM trajectories) WHERE number = ? AND state = ?",
        (Place.ENDED, result, number, Place.QUEUED),
    )


def _forget(connection: sqlite3.Connection, *, numbers: Sequence[int]) -> None:
    connection.execute("BEGIN")
    connection.executemany(
        "UPDATE trajectories SET state = ?, task = NULL, ending = NULL, result = NULL WHERE number = ?",
        [(_GONE, number) for number in numbers],
    )


def _weights(connection: sqlite3.Connection) -> PushedWeights | None:
    kept = dict(connection.execute("SELECT name, value FROM about WHERE name LIKE 'weights.%'"))
    if not kept:
        return None
    return PushedWeights(
        kept["weights.folder"], kept["weights.version"], tuple(json.loads(kept.get("weights.before", "[]")))
    )


def _keep_weights(connection: sqlite3.Connection, *, weights: PushedWeights) -> None:
    connection.execute("BEGIN")
    kept = {"weights.folder": weights.folder, "weights.version": weights.version}
    kept["weights.before"] = json.dumps(weights.before)
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", kept.items())


def _prune(connection: sqlite3.Connection, *, known_ids: int) -> None:
    """Deletes the oldest of those that are gone."""
    oldest = "SELECT number FROM trajectories WHERE state = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
    connection.execute(
        f"DELETE FROM trajectories WHERE state = ? AND number <= ({oldest})",  # noqa: S608 - no values in it
        (_GONE, _GONE, known_ids),
    )
