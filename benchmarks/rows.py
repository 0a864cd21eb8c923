"""Figures, and how CPU time is taken: of processes, so that the load of the machine does not distort it much."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One figure. `ok` is None where no bar stands beside it, or where it could not be taken."""

    name: str
    value: float | None
    unit: str
    bar: float | None = None
    ok: bool | None = None
    against: str | None = None


@dataclass(frozen=True)
class Slice:
    """One variant in one round."""

    pairs_per_s: float
    server_us: float
    client_us: float


Pair = Callable[[], Awaitable[None]]


def figure(
    name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None, against: str = ""
) -> Row:
    """`most` and `least` are bars."""
    bar = most if most is not None else least
    ok = None if bar is None else (value <= bar if most is not None else value >= bar)
    return Row(name, round(value, 3), unit, bar, ok, against or None)


def skipped(name: str, why: str) -> Row:
    """A figure that could not be taken."""
    return Row(name, None, "", None, None, f"skipped: {why}")


def median(values: Sequence[float]) -> float:
    """Median of at least one value."""
    return statistics.median(values)


def cpu_of(*pids: int) -> float:
    """CPU seconds that processes have used, all of their threads."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def resident_kib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


async def measure(pair: Pair, tasks: int, server: int, seconds: float) -> Slice:
    """Runs `pair` again and again in that many tasks of this process."""
    done = 0
    end = time.monotonic() + seconds

    async def worker() -> None:
        nonlocal done
        while time.monotonic() < end:
            await pair()
            done += 1

    before, mine, started = cpu_of(server), time.process_time(), time.monotonic()
    await asyncio.gather(*(worker() for _ in range(tasks)))
    elapsed = time.monotonic() - started
    after, mine_after = cpu_of(server), time.process_time()
    return Slice(done / elapsed, (after - before) / done * 1e6, (mine_after - mine) / done * 1e6)
