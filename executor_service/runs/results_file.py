"""Results that outlive the server, in a file of SQLite: which request ids were begun, and how they ended.

begun (the program may have run) -> ended, with its result -> its result dropped for its size -> forgotten by age.

Invariants: `begin` returns when the disk has it; an end is written soon after, and until then the id is one whose
program may have run; what is kept is bounded by count, by bytes and by age, and runs in flight are never dropped; a
result that isn't as it was written is none. After a failure nothing more is written, `status` says why, and the server
goes on as one that has no such file.

All of SQLite runs in one thread of its own, never on the event loop; a commit takes all that waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import stat
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from google.protobuf.message import DecodeError

from executor_service.model import ExecutionResult
from executor_service.v1 import executor_pb2 as pb
from executor_service.wire.programs import from_message
from executor_service.wire.results import result_pieces
from fairbox.errors import ConfigError

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_NAME = "results.db"
_VERSION = 1
"""Version of the table and of what is in it. A file of another one is begun anew."""
_TABLE = """
CREATE TABLE runs (
    request_id TEXT PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    at REAL NOT NULL,
    ended INTEGER NOT NULL,
    size INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    result BLOB
);
CREATE INDEX ended ON runs (at) WHERE ended;
CREATE INDEX kept ON runs (at) WHERE size > 0;
"""
_PUT = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM runs WHERE request_id = ? RETURNING size"
_EXPIRE = "DELETE FROM runs WHERE ended AND at < ? RETURNING size"
_FORGET = "DELETE FROM runs WHERE rowid IN (SELECT rowid FROM runs WHERE ended ORDER BY at LIMIT ?) RETURNING size"
_OLDEST = "SELECT rowid, size FROM runs WHERE size > 0 ORDER BY at LIMIT 1"
_EMPTY = "UPDATE runs SET size = 0, result = NULL WHERE rowid = ?"
_LARGEST = 8 << 20
"""Bytes of the largest result that is kept: longer ones would hold the interpreter for milliseconds."""
_WAITING_BYTES = 64 << 20
"""Most bytes of results that wait for the disk. One that comes when it is that far behind is not kept."""
_SOON_S = 0.05
"""Ends of so long are written together. What ended since is lost with a process that is killed."""
_WITHIN_S = 10.0
"""A disk that has not answered by then has failed; no run waits for it any longer."""


class Earlier(NamedTuple):
    """A run of an earlier life of the server."""

    request_id: str
    fingerprint: bytes
    result: ExecutionResult | None
    """None: its program may have run, and how it ended is not known any more."""
    age_s: float
    """Seconds since its end by the wall clock, or since this life began."""


class _Change(NamedTuple):
    request_id: str
    fingerprint: bytes
    result: ExecutionResult | None = None
    ended: bool = False
    abandoned: bool = False


class ResultsFile:
    """`async with ResultsFile(folder, ...) as results`. Raises ConfigError where the folder can't be used, or another
    server uses it."""

    def __init__(self, folder: str, *, max_ids: int, max_bytes: int, max_age_s: float) -> None:
        self._path = Path(folder, _NAME)
        self._max_ids = max_ids
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="results")
        self._connection: sqlite3.Connection | None = None
        self._changes: deque[_Change] = deque()
        """Changes that wait for the disk. Both threads use it."""
        self._asked_bytes = self._written_bytes = 0
        self._count = self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failure = ""
        self._earlier: list[Earlier] = []
        self._restored = 0

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._open)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(_WITHIN_S):
                await asyncio.shield(self._run(self._close))
        except TimeoutError:
            _LOG.error("the last results were not written: %s: the disk took more than %g s", self._path, _WITHIN_S)
        finally:
            self._thread.shutdown(wait=False)

    def take_earlier(self) -> list[Earlier]:
        """Runs of earlier lives that the file has, the oldest first; once."""
        earlier, self._earlier = self._earlier, []
        return earlier

    async def begin(self, request_id: str, fingerprint: bytes) -> None:
        """Returns when a crash can't undo it any more, or the file has failed."""
        if self._failure:
            return
        self._changes.append(_Change(request_id, fingerprint))
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._run(self._commit)
        except TimeoutError:
            self._fail(f"the disk took more than {_WITHIN_S:g} s")

    def end(self, request_id: str, fingerprint: bytes, result: ExecutionResult) -> None:
        """Its result is written soon."""
        size = result.size
        kept = size <= _LARGEST and self._asked_bytes - self._written_bytes + size <= _WAITING_BYTES
        self._asked_bytes += size if kept else 0
        self._soon(_Change(request_id, fingerprint, result if kept else None, ended=True))

    def abandon(self, request_id: str) -> None:
        """Its program did not run: the id is free again."""
        self._soon(_Change(request_id, b"", abandoned=True))

    def status(self) -> pb.ResultsStatus:
        """Size of the file, and why it is not written any more, if so."""
        return pb.ResultsStatus(entries=self._count, bytes=self._bytes, restored=self._restored, failure=self._failure)

    def _soon(self, change: _Change) -> None:
        if not self._failure:
            self._changes.append(change)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_SOON_S, self._commit_soon)

    def _commit_soon(self) -> None:
        self._timer = None
        self._thread.submit(self._commit)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _fail(self, why: str) -> None:
        if not self._failure:
            self._failure = f"{self._path}: {why}"
            _LOG.error("results no longer outlive this server: %s", self._failure)
        self._changes.clear()

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (self._path.parent, *self._files()):
                _unlock(path)
            try:
                self._load()
            except (sqlite3.DatabaseError, _OtherVersion) as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                _LOG.warning("%s is begun anew, without the results of earlier lives: %s", self._path, error)
                self._remove()
                self._load()
        except (OSError, sqlite3.Error) as error:
            self._disconnect()
            why = "another server uses it" if "locked" in str(error) else getattr(error, "strerror", None) or error
            raise ConfigError(f"results_dir is {str(self._path.parent)!r}: {why}") from None

    def _load(self) -> None:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # output of programs is in it
        # It alone has the file, so that the log needs no shared memory; each commit waits for the disk.
        connection = self._connection = sqlite3.connect(self._path, isolation_level=None, timeout=0)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN EXCLUSIVE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _TABLE.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={_VERSION}")
        elif version != _VERSION:
            raise _OtherVersion(f"it is of version {version}, must be of {_VERSION}")
        now = time.time()
        connection.execute("UPDATE runs SET ended = 1, at = ? WHERE NOT ended", (now,))
        connection.execute("UPDATE runs SET at = ? WHERE at > ?", (now, now))  # the clock was set back
        found = connection.execute("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM runs").fetchone()
        self._count, self._bytes = found
        self._trim(connection, now)
        connection.execute("COMMIT")
        self._earlier = list(_earlier(connection, now))
        self._restored = len(self._earlier)

    def _remove(self) -> None:
        self._disconnect()
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [Path(f"{self._path}{suffix}") for suffix in ("", "-wal", "-shm")]

    def _close(self) -> None:
        self._commit()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _commit(self) -> None:
        connection, changes = self._connection, self._taken()
        if connection is None or not changes:
            return
        try:
            connection.execute("BEGIN")
            for change in changes:
                self._put(connection, change)
            self._trim(connection, time.time())
            connection.execute("COMMIT")
        except Exception as error:  # the boundary: nobody waits for what this thread does
            self._fail(str(error))
            with suppress(sqlite3.Error):
                self._disconnect()

    def _taken(self) -> list[_Change]:
        changes = []
        with suppress(IndexError):
            while True:
                changes.append(self._changes.popleft())
        return changes

    def _put(self, connection: sqlite3.Connection, change: _Change) -> None:
        self._drop(connection, _DELETE, change.request_id)
        if change.abandoned:
            return
        result, size = b"", 0
        if change.result is not None:
            result = b"".join(result_pieces(change.result))
            size = len(result)
            self._written_bytes += change.result.size
        checksum = zlib.crc32(result, zlib.crc32(change.fingerprint))
        facts = (change.request_id, change.fingerprint, time.time(), change.ended, size, checksum, result)
        connection.execute(_PUT, facts)
        self._count += 1
        self._bytes += size

    def _trim(self, connection: sqlite3.Connection, now: float) -> None:
        self._drop(connection, _EXPIRE, now - self._max_age_s)
        if (over := self._count - self._max_ids) > 0:
            self._drop(connection, _FORGET, over)
        while self._bytes > self._max_bytes:
            rowid, size = connection.execute(_OLDEST).fetchone()
            connection.execute(_EMPTY, (rowid,))
            self._bytes -= size

    def _drop(self, connection: sqlite3.Connection, statement: str, value: float | str) -> None:
        gone = connection.execute(statement, (value,)).fetchall()
        self._count -= len(gone)
        self._bytes -= sum(size for (size,) in gone)


class _OtherVersion(Exception):
    """The file is of another version of fairbox."""


def _unlock(path: Path) -> None:
    """Gives an owner his rights back: programs of an ordinary user's server, at level landlock, can take them."""
    with suppress(OSError):
        found = path.stat()
        if found.st_uid == os.geteuid():
            path.chmod(found.st_mode | (stat.S_IRWXU if path.is_dir() else stat.S_IRUSR | stat.S_IWUSR))


def _earlier(connection: sqlite3.Connection, now: float) -> Iterator[Earlier]:
    """All runs, the oldest first."""
    rows = connection.execute("SELECT request_id, fingerprint, at, size, checksum, result FROM runs ORDER BY at")
    for request_id, fingerprint, at, size, checksum, body in rows:
        result = None
        if size and zlib.crc32(body, zlib.crc32(fingerprint)) == checksum:
            with suppress(DecodeError, ValueError):  # of a later version of fairbox
                result = from_message(ExecutionResult, pb.ExecutionResult.FromString(body))
        yield Earlier(request_id, fingerprint, result, now - at)
