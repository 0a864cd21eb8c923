"""A file of entries, in SQLite with a write-ahead log: what was appended is there after a crash.

Invariants: `append` returns when its entry is committed, with all that waited beside it in one transaction; entries of
a trajectory are read in their order up to the first that is not as it was written, and nothing behind that one is
trusted; one process has the file at a time. After a failure nothing more is written. `Durability` says what a commit
survives.

All of SQLite runs in one thread of its own, never on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

from fairbox.errors import FairboxError
from rollout.journal.entries import BadEntry, Entry, Written, read, written

NAME = "journal.db"
SCORE = 1 << 30
"""Number of a trajectory's score, behind those of all its entries."""
_VERSION = "1"
"""Version of the tables and the entries. A file of another one is refused."""
_ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
_TABLES = """
CREATE TABLE entries (
    place INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (place, attempt, number)
) WITHOUT ROWID;
"""
_APPEND = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)"
Result = TypeVar("Result")


class Durability(StrEnum):
    """Names the event that a committed entry survives."""

    NONE = "none"
    """Nothing is written."""
    PROCESS = "process"
    """The death of the process, by SIGKILL too."""
    MACHINE = "machine"
    """A loss of power: each commit waits for the disk."""


_SYNCHRONOUS = {Durability.PROCESS: "OFF", Durability.MACHINE: "FULL"}


class JournalError(FairboxError):
    """A journal can't be written, or not be read. The text names the file. It ends the run: without it a trajectory's
    turns would be lost in silence."""


class JournalFile:
    """`async with JournalFile(path, about={...}) as journal`, whose file is made by `begin()`; `about` None opens one
    that is there."""

    def __init__(self, path: Path, *, durability: Durability, about: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.about = dict(about or {})
        """Facts about the run, as it was begun."""
        self._new = about is not None
        self._durability = durability
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._waiting: deque[tuple[int, int, int, Entry]] = deque()
        """Entries to be committed, with place, attempt and number. Both threads use it."""
        self._due = False
        """A commit was asked for and has not begun. Both threads use it."""
        self._commits: asyncio.Future[None] | None = None
        """The commit that was asked for last."""
        self._failure: JournalError | None = None
        self._connection: sqlite3.Connection | None = None

    async def __aenter__(self) -> Self:
        try:
            if not self._new:
                await self._run(self._open)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.shield(self._run(self._end))
        finally:
            self._thread.shutdown(wait=False)

    async def begin(self) -> None:
        """Makes the file, if it is a new one. Raises JournalError."""
        await self._run(self._live)

    async def append(self, place: int, attempt: int, number: int, entry: Entry, *, waits: bool = True) -> None:
        """Returns when it is committed; unless it `waits` for that, at once, and the next entry that waits commits it
        too. Raises JournalError."""
        self._waiting.append((place, attempt, number, entry))
        if not waits:
            return
        # The thread takes `_due` back before it looks at what waits: a commit that is due still takes this entry too.
        if self._commits is None or not self._due:
            self._due = True
            self._commits = asyncio.ensure_future(self._run(self._commit))
            self._commits.add_done_callback(_seen)
        await asyncio.shield(self._commits)

    async def entries(self, place: int, attempt: int) -> list[Entry]:
        """A trajectory's entries; those that can't be trusted are deleted. Raises JournalError."""
        return [] if self._new else await self._run(lambda: self._entries(place, attempt))

    async def score(self, place: int, attempt: int) -> Entry | None:
        """The recorded score of a trajectory; None: there is none. Raises JournalError."""
        return None if self._new else await self._run(lambda: self._score(place, attempt))

    async def forget(self, place: int) -> None:
        """Deletes what a trajectory has, of all its attempts. Raises JournalError."""
        await self._run(lambda: self._forget(place))

    async def delete(self) -> None:
        """Deletes the file: the run has ended, and there is nothing to go on with."""
        await self._run(self._delete)

    async def _run(self, work: Callable[[], Result]) -> Result:
        """Runs it in the thread of the file, behind all that is asked for already."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def _guarded(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:  # the last two: a tool's answer is no JSON
            # Here, and not on the loop: what runs next must know it, as its entry may be among those that are lost.
            hint = "; with journal=none a run does without" if self._connection is None else ""
            self._failure = JournalError(f"{self.path}: {getattr(error, 'strerror', None) or error}{hint}")
            raise self._failure from None

    def _open(self) -> sqlite3.Connection:
        if self._new and begun(self.path):
            raise JournalError(f"{self.path}: exists, and belongs to another run")
        if self._new:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._connection, self.about = opened(self.path, self._durability, self.about if self._new else None)
        self._new = False
        return self._connection

    def _end(self) -> None:
        self._close()
        self._failure = JournalError(f"{self.path}: is closed")  # who comes late must not open it again

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _delete(self) -> None:
        self._close()  # which takes the log back into the file
        if not self._new:
            self.path.unlink(missing_ok=True)

    def _live(self) -> sqlite3.Connection:
        if self._failure is not None:
            raise self._failure
        return self._connection or self._open()

    def _commit(self) -> None:
        self._due = False
        connection = self._live()
        rows = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if rows:
            connection.execute("BEGIN")
            for place, attempt, number, entry in rows:
                stored = written(entry)
                connection.execute(_APPEND, (place, attempt, number, stored.kind, stored.body, stored.checksum))
            connection.execute("COMMIT")

    def _score(self, place: int, attempt: int) -> Entry | None:
        select = "SELECT kind, body, checksum FROM entries WHERE place = ? AND attempt = ? AND number = ?"
        stored = self._live().execute(select, (place, attempt, SCORE)).fetchone()
        try:
            return None if stored is None else read(Written(*stored))
        except BadEntry:
            self._drop(place, attempt, SCORE)
            return None

    def _forget(self, place: int) -> None:
        self._commit()  # what waits may be of this trajectory
        self._live().execute("DELETE FROM entries WHERE place = ?", (place,))

    def _drop(self, place: int, attempt: int, number: int) -> None:
        """Deletes an entry, and those behind it."""
        drop = "DELETE FROM entries WHERE place = ? AND attempt = ? AND number >= ?"
        self._live().execute(drop, (place, attempt, number))

    def _entries(self, place: int, attempt: int) -> list[Entry]:
        connection, key = self._live(), (place, attempt)
        found: list[Entry] = []
        select = (
            "SELECT number, kind, body, checksum FROM entries WHERE place = ? AND attempt = ? AND number < ? "
            "ORDER BY number"
        )
        for number, *stored in connection.execute(select, (*key, SCORE)).fetchall():
            try:
                if number != len(found):
                    raise BadEntry(f"entry {len(found)} is missing")
                found.append(read(Written(*stored)))
            except BadEntry:
                self._drop(*key, len(found))
                break
        return found


def _seen(commit: asyncio.Future[None]) -> None:
    """Takes its failure in: those that waited for it may have gone, and `_failure` tells the others."""
    if not commit.cancelled():
        commit.exception()


def begun(path: Path) -> bool:
    """Says whether anything was ever committed to a file: a process may end while it makes one. A file that can't be
    read is one that was begun."""
    if not path.is_file():
        return False
    with contextlib.closing(sqlite3.connect(path, timeout=1.0)) as connection:
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # as in `opened`
            return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None
        except sqlite3.Error:
            return True


def opened(
    path: Path, durability: Durability, about: Mapping[str, str] | None, tables: str = _TABLES
) -> tuple[sqlite3.Connection, dict[str, str]]:
    """A connection that alone has the file, and the facts about the run. `about`: those of a new file, which gets
    `tables`; None: it is there. Raises JournalError and sqlite3.Error."""
    if about is None and not path.is_file():
        raise JournalError(f"{path}: is not there, so there is no run to go on with")
    connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # before the log is used, which so needs no shared memory
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS[durability]}")
        connection.execute("BEGIN EXCLUSIVE")
        if about is not None:
            for statement in (*_ABOUT.split(";"), *tables.split(";")):
                connection.execute(statement)
            connection.executemany("INSERT INTO about VALUES (?, ?)", {**about, "version": _VERSION}.items())
        found = dict(connection.execute("SELECT name, value FROM about"))
        connection.execute("COMMIT")
        if (version := found.pop("version", "")) != _VERSION:
            raise JournalError(f"{path}: is of version {version!r}, must be of {_VERSION!r}")
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise JournalError(f"{path}: another process uses it") from None
        raise
    return connection, found
