"""What an acquire and its release cost, the ways taking turns: unary calls, the session stream, the same stream without
any rules behind it (transport), a plain TCP server of the same messages, and verl's Ray actor."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from benchmarks import limiter_verl
from benchmarks.limiter_floor import floor_server
from benchmarks.limiter_server import LIMIT, running
from benchmarks.limiter_transport import transport_server
from benchmarks.limiter_verl import VerlLimiter, verl_limiter
from benchmarks.rows import Pair, Row, Slice, figure, measure, median, skipped
from limiter import LimiterClient
from limiter.client.unary import UnaryLimiterClient
from limiter.core import BucketLimits, LimiterCore, SessionKind
from limiter.core.effects import Granted
from limiter.core.events import Acquire, Hello, Release

__all__ = ["rows"]

_ROUNDS = 5
_SLICE_S = 1.0
_WARM_UP_S = 0.3
_TASKS = 64
_VERL = "verl's Ray actor"

_MOST_STREAM_US = 60.0
"""Server CPU per pair over one coalescing stream with 64 tasks: what a small share of one core can pay for thousands of
pairs per second."""
_MOST_OF_UNARY = 0.2
_MOST_OF_FLOOR = 2.5
_LEAST_PAIRS_OF_VERL = 14.0
_MOST_CPU_OF_VERL = 1 / 28


@dataclass(frozen=True)
class _Way:
    """One way to acquire and release."""

    name: str
    tasks: int
    server: int
    pair: Pair


async def rows() -> list[Row]:
    """Medians over the rounds; a ratio is one of the same round."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(running())
        stream = await stack.enter_async_context(LimiterClient(server.address, unavailable_after=30))
        unary = await stack.enter_async_context(UnaryLimiterClient(server.address))
        bare_pid, bare_address = await stack.enter_async_context(transport_server())
        bare = await stack.enter_async_context(LimiterClient(bare_address, unavailable_after=30))
        floor_pid, floor_pair = await stack.enter_async_context(floor_server())
        verl = None if limiter_verl.WHY_NOT else stack.enter_context(verl_limiter(_TASKS))

        async def stream_pair() -> None:
            async with stream.lease():
                pass

        async def bare_pair() -> None:
            async with bare.lease():
                pass

        async def unary_pair() -> None:
            async with unary.lease():
                pass

        ways = []
        for tasks in (1, _TASKS):
            ways.append(_Way("unary", tasks, server.pid, unary_pair))
            ways.append(_Way("stream", tasks, server.pid, stream_pair))
            ways.append(_Way("transport", tasks, bare_pid, bare_pair))
            ways.append(_Way("floor", tasks, floor_pid, floor_pair))
        if verl is not None:
            ways.append(_Way(_VERL, _TASKS, verl.pid, verl.pair))
        return _figures(await _rounds(ways, verl))


async def _rounds(ways: list[_Way], verl: VerlLimiter | None) -> dict[tuple[str, int], list[Slice]]:
    for way in ways:
        await measure(way.pair, way.tasks, way.server, _WARM_UP_S)
    taken: dict[tuple[str, int], list[Slice]] = {}
    for _ in range(_ROUNDS):
        for way in ways:
            found = await measure(way.pair, way.tasks, way.server, _SLICE_S)
            taken.setdefault((way.name, way.tasks), []).append(found)
        if verl is not None:
            found = await verl.measure_threads(_TASKS, _SLICE_S)
            taken.setdefault((f"{_VERL} without a hop", _TASKS), []).append(found)
    return taken


def _figures(taken: dict[tuple[str, int], list[Slice]]) -> list[Row]:
    found = [figure(f"core, {waiters} waiting: CPU per pair", _core_us(waiters), "us") for waiters in (0, 64, 9_000)]
    for (name, tasks), slices in taken.items():
        most = _MOST_STREAM_US if (name, tasks) == ("stream", _TASKS) else None
        name = f"{name}, {tasks} tasks"
        found.append(figure(f"{name}: pairs", median([each.pairs_per_s for each in slices]), "1/s"))
        found.append(
            figure(f"{name}: server CPU per pair", median([each.server_us for each in slices]), "us", most=most)
        )
        found.append(figure(f"{name}: client CPU per pair", median([each.client_us for each in slices]), "us"))

    def ratio(other: str, *, of: str = "stream", pairs: bool = False) -> float:
        both = list(zip(taken[of, _TASKS], taken[other, _TASKS], strict=True))
        if pairs:
            return median([mine.pairs_per_s / theirs.pairs_per_s for mine, theirs in both])
        return median([mine.server_us / theirs.server_us for mine, theirs in both])

    found.append(figure("stream/unary: server CPU", ratio("unary"), "x", most=_MOST_OF_UNARY, against="unary calls"))
    against = "plain TCP and protobuf"
    found.append(figure("stream/floor: server CPU", ratio("floor"), "x", most=_MOST_OF_FLOOR, against=against))
    found.append(figure("transport/floor: server CPU", ratio("floor", of="transport"), "x", against=against))
    found.append(figure("stream/transport: server CPU", ratio("transport"), "x", against="gRPC without any rules"))
    if (_VERL, _TASKS) not in taken:
        return [*found, skipped("stream/verl", limiter_verl.WHY_NOT)]
    against = _VERL
    pairs, cpu = ratio(_VERL, pairs=True), ratio(_VERL)
    found.append(figure("transport/verl: server CPU", ratio(_VERL, of="transport"), "x", against=against))
    found.append(figure("stream/verl: pairs", pairs, "x", least=_LEAST_PAIRS_OF_VERL, against=against))
    found.append(figure("stream/verl: server CPU", cpu, "x", most=_MOST_CPU_OF_VERL, against=against))
    return found


def _core_us(waiters: int, pairs: int = 20_000) -> float:
    """CPU microseconds per pair of the core alone, making its events included."""
    core = LimiterCore(1, [BucketLimits("code", LIMIT)], now=0.0)
    core.handle(Hello("s", SessionKind.CLIENT), 0.0)
    held = []
    for number in range(waiters + LIMIT):
        held += [each.leases[0] for each in core.handle(Acquire("s", f"w{number}"), 0.0) if isinstance(each, Granted)]
    started = time.process_time()
    for number in range(pairs):
        now = number * 1e-5
        effects = core.handle(Release("s", held[number]), now)
        effects += core.handle(Acquire("s", f"r{number}"), now)
        held += [each.leases[0] for each in effects if isinstance(each, Granted)]
    return (time.process_time() - started) / pairs * 1e6
