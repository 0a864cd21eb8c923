"""The disk of a simulated service: what it does takes virtual time, and it can be cut off, copied and spoiled.

SQLite is real, and so are its files; only who waits for it, and how long, is simulated.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor
from enum import StrEnum
from pathlib import Path
from typing import Any

from rollout.journal import NAME as JOURNAL
from rollout.journal import JournalError
from rollout.service.store import NAME as TRAJECTORIES
from tests.limiter.sim.loop import SimLoop

_SLOWEST_S = 0.004


class Fault(StrEnum):
    """Fates of the files when the process ends."""

    KILLED = "killed"
    """They are as they were: all that was committed is there."""
    TORN = "torn"
    """The last bytes of one file never reached the disk, or are others."""
    OLDER = "older"
    """The volume comes back as it was at an earlier moment."""
    APART = "apart"
    """One file comes back as it was at an earlier moment, the other one as it is."""
    ROTTEN = "rotten"
    """Some of what is recorded is no longer what was written."""
    LOST = "lost"
    """The volume comes back empty."""


class CutOff(BaseException):
    """The process ends here."""


class DiskLoop(SimLoop):
    """Work for threads is done in the loop, later by some virtual time, and each thread's in its order. `before` and
    `behind` are called with it; what it came to reaches nobody where the process was stopped meanwhile."""

    def __init__(self, draws: random.Random) -> None:
        super().__init__()
        self._draws = draws
        self._free_at: dict[int, float] = {}
        self.before: Callable[[], None] = lambda: None
        self.behind: Callable[[], None] = lambda: None

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, work: Callable[..., Any], *given: Any
    ) -> asyncio.Future[Any]:
        answer, now = self.create_future(), self.true_time
        free_at = now if executor is None else max(self._free_at.get(id(executor), now), now)
        done_at = free_at + self._draws.uniform(0.0001, _SLOWEST_S)
        if executor is not None:
            self._free_at[id(executor)] = done_at

        def do() -> None:
            try:
                if executor is not None:
                    self.before()
                result = work(*given)
                if executor is not None:
                    self.behind()
            except (Exception, CutOff) as error:
                # Whoever was cut off hears of it when what is left of it runs out.
                if not answer.done():
                    answer.set_exception(error if isinstance(error, Exception) else JournalError("cut off"))
                return
            if not answer.done():
                answer.set_result(result)

        self.call_later(done_at - now, do)
        return answer


class Volume:
    """The folder of a service, one after the other over its lives, and what it was at earlier moments."""

    def __init__(self, root: Path, draws: random.Random) -> None:
        self._root = root
        self._draws = draws
        self._number = 0
        self.earlier: list[Path] = []
        self.folder = self._new()

    def remember(self) -> None:
        """Keeps what the files are now."""
        self.earlier.append(self._copy(self.folder))

    def after(self, fault: Fault) -> None:
        """The files as the next life finds them, whatever is still done to those of this one."""
        self.folder = self._copy(self.folder)
        if fault is Fault.OLDER and self.earlier:
            shutil.rmtree(self.folder)
            self.folder = self._copy(self._draws.choice(self.earlier))
        if fault is Fault.APART and self.earlier:
            self._take(self._draws.choice((JOURNAL, TRAJECTORIES)), self._draws.choice(self.earlier))
        if fault is Fault.TORN:
            self._tear()
        if fault is Fault.ROTTEN:
            self._rot()
        if fault is Fault.LOST:
            self.folder = self._new()

    def _new(self) -> Path:
        self._number += 1
        folder = self._root / str(self._number)
        folder.mkdir()
        return folder

    def _copy(self, source: Path) -> Path:
        target = self._new()
        for file in source.iterdir():
            shutil.copyfile(file, target / file.name)
        return target

    def _take(self, name: str, earlier: Path) -> None:
        for end in ("", "-wal"):
            (self.folder / (name + end)).unlink(missing_ok=True)
            if (earlier / (name + end)).exists():
                shutil.copyfile(earlier / (name + end), self.folder / (name + end))

    def _tear(self) -> None:
        log = self.folder / (self._draws.choice((JOURNAL, TRAJECTORIES)) + "-wal")
        if not log.exists() or not (whole := log.read_bytes()):
            return
        at = self._draws.randrange(max(len(whole) - 20_000, 0), len(whole))
        rest = b"" if self._draws.random() < 0.5 else self._draws.randbytes(len(whole) - at)
        log.write_bytes(whole[:at] + rest)

    def _rot(self) -> None:
        path = self.folder / JOURNAL
        if not path.exists():
            return
        with sqlite3.connect(path) as connection:
            rows = connection.execute("SELECT place, attempt, number, body FROM entries ORDER BY 1, 2, 3").fetchall()
            for place, attempt, number, body in self._draws.sample(rows, min(len(rows), 2)):
                at = self._draws.randrange(len(body))
                other = bytes([body[at] ^ 1])
                connection.execute(
                    "UPDATE entries SET body = ? WHERE place = ? AND attempt = ? AND number = ?",
                    (body[:at] + other + body[at + 1 :], place, attempt, number),
                )
        connection.close()
