"""Leading by a lock on a file of this machine, with epoch, roster and key in a file beside it.

The kernel gives the lock to one process and takes it back when that process dies, never before, so a leader leads for
as long as it lives. The lock is on `PATH.lock`, which is never renamed; `PATH` is replaced as a whole with each write.
A write that has begun holds the lock until it ends, so none can land in a later term. Nothing has to be renewed: a disk
that is full or slow keeps a roster from being written, and ends no term.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fairbox.errors import ConfigError
from limiter.leadership.term import (
    KEY_BYTES,
    LeadershipLost,
    Member,
    RosterNotKept,
    Term,
    decode_key,
    decode_roster,
    encode_roster,
    wall_epoch,
)

T = TypeVar("T")
_State = tuple[int, tuple[Member, ...] | None, bytes]
"""Epoch, roster and key."""

_POLL_S = 0.05
"""Seconds between a waiting limiter's tries of the lock: it follows a dead leader within this time."""
_CHECK_S = 1.0
"""Seconds between a leader's looks whether the lock file is still the one that it locked."""
_WRITE_WITHIN_S = 10.0
"""For a write: so long a join waits for the disk, and a process that ends."""
_LEADER_BYTES = 512
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "fuse.sshfs"})
"""File systems on which a lock is lost when the server forgets it, while its holder goes on."""


class FileLeadership:
    """`leader=file`. `path` is the state file; `name` is what a waiting limiter shows as its leader. `fresh`: where
    there is no state file, no executor has worked for an earlier limiter.

    The lock's descriptor is closed in programs that this one starts, so that none of them outlives it with the lock; a
    process that uses it must not fork.
    """

    keeps_roster = True

    def __init__(self, path: str | Path, *, name: str = "", fresh: bool = False) -> None:
        self._path = Path(path).absolute()
        self._lock_path = self._path.with_name(self._path.name + ".lock")
        self._name = name
        self._fresh = fresh
        self._lock: int | None = None
        self._epoch = 0
        self._key = b""
        self._at_work: set[asyncio.Future[Any]] = set()
        """Work that threads are doing for it."""
        self._writing: asyncio.Task[None] | None = None
        """The last write of the state file."""
        self._resigned = False
        self.leader = ""
        self.lead_until = float("-inf")

    async def campaign(self) -> Term:
        """Waits for the lock. ConfigError for a state file that can't be read, LeadershipLost after `resign()`."""
        while not await self._off_loop(self._try_lock):
            if self._resigned:
                raise LeadershipLost("this process has resigned")
            await asyncio.sleep(_POLL_S)
        try:
            epoch, roster, key = await self._off_loop(self._read)
            self._epoch = max(epoch + 1, wall_epoch())
            self._key = key or secrets.token_bytes(KEY_BYTES)
            await self._write(roster)
        except RosterNotKept as error:
            await asyncio.shield(self.resign())
            raise LeadershipLost(str(error)) from None
        except BaseException:
            await asyncio.shield(self.resign())
            raise
        self.leader, self.lead_until = self._name, float("inf")
        return Term(self._epoch, roster, epoch > 0 or not self._fresh, self._key)

    async def hold(self) -> None:
        """Until it is cancelled. LeadershipLost when somebody removed the lock file, so that another can lock a new
        one."""
        ours = True
        while ours:
            await asyncio.sleep(_CHECK_S)
            ours = await self._off_loop(self._lock_is_ours)
        self.lead_until = float("-inf")
        raise LeadershipLost(f"{self._lock_path} was removed or replaced")

    async def store(self, roster: Sequence[Member]) -> None:
        """Writes the state file, down to the disk. RosterNotKept when that fails or takes longer than 10 s."""
        if self.lead_until == float("-inf"):
            raise LeadershipLost("this process does not lead")
        await self._write(tuple(roster))

    async def resign(self) -> None:
        """Gives the lock back, after what may be on its way to the disk; if that hangs, at the end of the process."""
        self._resigned, self.lead_until = True, float("-inf")
        if self._at_work:
            await asyncio.wait(self._at_work, timeout=_WRITE_WITHIN_S)
        if self._lock is not None and not self._at_work:
            lock, self._lock = self._lock, None
            os.close(lock)

    async def _write(self, roster: Sequence[Member] | None) -> None:
        text = json.dumps({"epoch": self._epoch, "roster": encode_roster(roster), "key": self._key.hex()})
        try:
            async with asyncio.timeout(_WRITE_WITHIN_S):
                if self._writing is not None:
                    await asyncio.wait([self._writing])  # one that took too long: they must land in their order
                self._writing = self._begin(lambda: _replace(self._path, text))
                await asyncio.shield(self._writing)
        except TimeoutError:
            raise RosterNotKept(f"{self._path} could not be written within {_WRITE_WITHIN_S:g} s") from None
        except OSError as error:
            raise RosterNotKept(f"{self._path} could not be written: {_reason(error)}") from None

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Callable[[], T]) -> asyncio.Task[T]:
        """Files can block for long, so they are no business of the event loop. A thread that was begun goes on to its
        end, also when nobody waits for it any more."""
        task = asyncio.create_task(asyncio.to_thread(work))
        self._at_work.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may have waited for it

    # In a thread

    def _try_lock(self) -> bool:
        if self._resigned:
            return False
        try:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"state_file {self._path}: {self._lock_path.name} can't be made: {_reason(error)}"
            ) from None
        try:
            _refuse_remote(lock, self._path)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _same_file(lock, self._lock_path):
                return False  # it was removed since it was opened, and another process may lock a new one
            os.ftruncate(lock, 0)
            os.pwrite(lock, self._name.encode()[:_LEADER_BYTES], 0)
            self._lock, lock = lock, -1
            return True
        except BlockingIOError:
            # Empty while that one has yet to write its name.
            self.leader = os.pread(lock, _LEADER_BYTES, 0).decode(errors="replace")
            return False
        except OSError as error:
            raise ConfigError(f"state_file {self._path} can't be locked: {_reason(error)}") from None
        finally:
            if lock >= 0:
                os.close(lock)

    def _lock_is_ours(self) -> bool:
        return self._lock is not None and _same_file(self._lock, self._lock_path)

    def _read(self) -> _State:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return 0, () if self._fresh else None, b""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"state_file {self._path} can't be read: {_reason(error)}") from None
        try:
            return _parse(text)
        except ValueError as error:
            raise ConfigError(
                f"state_file {self._path} is damaged: {error}; move it away only when no program of an executor runs"
            ) from None


def _parse(text: str) -> _State:
    state = json.loads(text)
    if not isinstance(state, dict) or set(state) - {"key"} != {"epoch", "roster"}:
        raise ValueError("it must have epoch, roster and key, and nothing else")
    epoch = state["epoch"]
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1:
        raise ValueError(f"epoch is {epoch!r}, must be from 1")
    return epoch, decode_roster(state["roster"]), decode_key(state["key"]) if "key" in state else b""


def _replace(path: Path, text: str) -> None:
    """Puts a file with `text`, which nobody else may read, at `path`: after a crash of the machine there is the old one
    or the new one."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _refuse_remote(descriptor: int, path: Path) -> None:
    """Linux says which file system a device number belongs to; elsewhere, and where it does not know, nothing is
    refused."""
    device = os.fstat(descriptor).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            mount, _, source = line.partition(" - ")
            if mount.split()[2] == wanted and source.split()[0] in _REMOTE:
                raise ConfigError(
                    f"state_file {path} is on {source.split()[0]}: a lock there can be lost while its "
                    "holder lives; take a folder of this machine"
                )


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error)
