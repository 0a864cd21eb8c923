"""What the limiter adds to a program of 50 ms: two real executors, one of them with a limiter, asked in turn.

The caller waits for its lease and gives it to the executor, which starts the program only when the lease is bound.
"""

from __future__ import annotations

import time

from benchmarks.executor_server import executor
from benchmarks.limiter_server import running
from benchmarks.rows import Row, figure, median
from executor_service import ExecutorClient
from limiter import LimiterClient

__all__ = ["rows"]

_CODE = "import time; time.sleep(0.05)"
_ROUNDS = 150
_WARM_UP = 10
_MOST_ADDED = 4.0
_SMALL = (
    "max_concurrent=2",
    "spare_boxes=1",
    "profiles.python-numpy.ahead=false",
    "profiles.python-sympy.ahead=false",
    "profiles.python-pandas.ahead=false",
    "profiles.python-science.ahead=false",
)


async def rows() -> list[Row]:
    """Medians, and how much longer the one with the limiter takes."""
    async with (
        running() as server,
        LimiterClient(server.address, unavailable_after=30) as limiter,
        executor(*_SMALL) as (plain, _),
        executor(*_SMALL, f"limiter={server.address}") as (limited, _),
    ):
        without, with_it = [], []
        for number in range(_WARM_UP + _ROUNDS):
            pair = await _plain(plain), await _limited(limiter, limited)
            if number >= _WARM_UP:
                without.append(pair[0])
                with_it.append(pair[1])
    added = (median(with_it) / median(without) - 1) * 100
    against = f"without a limiter: {median(without):.2f} ms"
    return [
        figure("a program of 50 ms with lease and bind", median(with_it), "ms", against=against),
        figure("a program of 50 ms: added by the limiter", added, "%", most=_MOST_ADDED, against=against),
    ]


async def _plain(client: ExecutorClient) -> float:
    began = time.perf_counter()
    assert (await client.execute(_CODE)).ok
    return (time.perf_counter() - began) * 1e3


async def _limited(limiter: LimiterClient, client: ExecutorClient) -> float:
    began = time.perf_counter()
    async with limiter.lease() as lease:
        assert (await client.execute(_CODE, lease=lease)).ok
    return (time.perf_counter() - began) * 1e3
