"""Cost of an acquire and its release over the session stream, by one task and by many, and in the core alone."""

from __future__ import annotations

import time

from benchmarks.limiter.server import LIMIT, running
from benchmarks.rows import Row, Slice, figure, measure, median
from limiter import LimiterClient
from limiter.core import BucketLimits, LimiterCore, SessionKind
from limiter.core.effects import Granted
from limiter.core.events import Acquire, Hello, Release

_ROUNDS = 5
_SLICE_S = 1.0
_WARM_UP_S = 0.3
_TASKS = 64

_MOST_STREAM_US = 60.0
"""Server CPU per pair over one coalescing stream with 64 tasks: what a small share of one core can pay for thousands of
pairs per second."""


async def rows() -> list[Row]:
    """Medians over the rounds."""
    taken: dict[int, list[Slice]] = {}
    async with running() as server, LimiterClient(server.address, unavailable_after=30) as client:

        async def pair() -> None:
            async with client.lease():
                pass

        for tasks in (1, _TASKS):
            await measure(pair, tasks, server.pid, _WARM_UP_S)
        for _ in range(_ROUNDS):
            for tasks in (1, _TASKS):
                taken.setdefault(tasks, []).append(await measure(pair, tasks, server.pid, _SLICE_S))
    found = [figure(f"core, {waiters} waiting: CPU per pair", _core_us(waiters), "us") for waiters in (0, 64, 9_000)]
    for tasks, slices in taken.items():
        name = f"stream, {tasks} tasks"
        found.append(figure(f"{name}: pairs", median([each.pairs_per_s for each in slices]), "1/s"))
        most = _MOST_STREAM_US if tasks == _TASKS else None
        found.append(
            figure(f"{name}: server CPU per pair", median([each.server_us for each in slices]), "us", most=most)
        )
        found.append(figure(f"{name}: client CPU per pair", median([each.client_us for each in slices]), "us"))
    return found


def _core_us(waiters: int, pairs: int = 20_000) -> float:
    """CPU microseconds per pair of the core alone, making its events included."""
    core = LimiterCore(1, [BucketLimits("code", LIMIT)], now=0.0)
    core.handle(Hello("s", SessionKind.CLIENT), 0.0)
    held = []
    for number in range(waiters + LIMIT):
        held += [each.lease for each in core.handle(Acquire("s", f"w{number}"), 0.0) if isinstance(each, Granted)]
    started = time.process_time()
    for number in range(pairs):
        now = number * 1e-5
        effects = core.handle(Release("s", held[number]), now)
        effects += core.handle(Acquire("s", f"r{number}"), now)
        held += [each.lease for each in effects if isinstance(each, Granted)]
    return (time.process_time() - started) / pairs * 1e6
