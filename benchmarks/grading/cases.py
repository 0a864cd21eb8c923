"""Cases per second of one problem of 100 small cases, beside a plain interpreter for each, and beside a judge without
isolation: verl's `prime_code`, whose source is taken from FAIRBOX_PRIME_CODE (the folder that has it)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.executor.server import INTERPRETER, executor
from benchmarks.rows import Row, figure, median, resident_kib, skipped
from executor_service import ExecutorClient, FunctionCase, StdioCase

CASES = 100
ROUNDS = 5
AT_ONCE = len(os.sched_getaffinity(0))
"""Problems that are graded at once: as many as the judge without isolation needs to use all processors."""
WARM_S = 10.0
"""A server loads profiles for this long after its start."""
PROGRAM = "n = int(input())\nnumbers = list(map(int, input().split()))\nprint(sum(numbers), max(numbers))\n"
FUNCTION = "def f(numbers):\n    return [sum(numbers), max(numbers)]\n"
_OTHER = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, sys.argv[1])
from prime_code import compute_score
program, cases, at_once, rounds = json.load(sys.stdin)
with ThreadPoolExecutor(at_once) as pool:
    for _ in range(rounds):
        began = time.perf_counter()
        said = list(pool.map(lambda _: compute_score(program, cases), range(at_once)))
        print(time.perf_counter() - began)
        assert all(right is True for right, _ in said), said
"""


def _texts() -> list[tuple[str, str]]:
    """Inputs and outputs."""
    return [(f"{n}\n{' '.join(map(str, range(n)))}\n", f"{sum(range(n))} {n - 1}\n") for n in range(1, CASES + 1)]


async def cases_rows() -> list[Row]:
    """Bars: 1.2 times the other judge, and 8 times plain interpreters."""
    async with executor("languages=python", f"max_concurrent={2 * AT_ONCE}") as (client, _):
        await asyncio.sleep(WARM_S)
        stdio = await _rate(lambda: _graded(client, PROGRAM, [StdioCase(a.encode(), b.encode()) for a, b in _texts()]))
        calls = [FunctionCase((list(range(n)),), [sum(range(n)), n - 1]) for n in range(1, CASES + 1)]
        function = await _rate(lambda: _graded(client, FUNCTION, calls, entry_point="f"))
    large = await _large_rows()
    plain = await _rate(_plain, at_once=1)
    rows = [
        figure("STDIO, cases a second", stdio, "/s", least=8 * plain, against=f"plain interpreters {plain:.0f}/s"),
        figure("FUNCTION, cases a second", function, "/s"),
        *large,
    ]
    folder = os.environ.get("FAIRBOX_PRIME_CODE", "")
    if not folder:
        return [*rows, skipped("FAIRBOX_PRIME_CODE", "set it to the folder that has verl's prime_code")]
    other = await _other(folder)
    return [*rows, figure("STDIO beside prime_code", stdio / other, "x", least=1.2, against=f"{other:.0f}/s")]


async def _large_rows() -> list[Row]:
    """200 cases with 10 MB of input in all."""
    line = " ".join(map(str, range(10_000)))  # 48,889 bytes
    cases = [StdioCase(f"{n}\n{line}\n".encode(), b"%d 9999\n" % sum(range(10_000))) for n in range(200)]
    size = sum(len(case.stdin) for case in cases) / 1e6
    took, resident = [], []
    async with executor("languages=python", f"max_concurrent={2 * AT_ONCE}") as (client, server):
        await asyncio.sleep(WARM_S)
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            await _graded(client, PROGRAM, cases)
            took.append(time.perf_counter() - began)
            resident.append(resident_kib(server.pid) / 1024)
    return [
        figure(f"200 cases, {size:.1f} MB of input", median(took[1:]), "s", most=0.5),
        figure("memory that the server gains by five such problems", resident[-1] - resident[0], "MiB", most=5),
    ]


async def _graded(client: ExecutorClient, code: str, cases: list[StdioCase] | list[FunctionCase], **more: str) -> None:
    result = await client.verify(code, cases, **more)  # type: ignore[arg-type]
    assert result.all_passed, result.cases[0]


async def _plain() -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(text: str, expected: str) -> None:
        async with room:
            process = await asyncio.create_subprocess_exec(INTERPRETER, "-c", PROGRAM, stdin=-1, stdout=-1)
            out, _ = await process.communicate(text.encode())
        assert out == expected.encode()

    await asyncio.gather(*(one(*each) for each in _texts()))


async def _rate(work: Callable[[], Awaitable[None]], at_once: int = AT_ONCE) -> float:
    """Cases a second: the median of some rounds, after one that does not count."""
    rates = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(at_once)))
        rates.append(at_once * CASES / (time.perf_counter() - began))
    return median(rates[1:])


async def _other(folder: str) -> float:
    texts = _texts()
    order = {"inputs": [a for a, _ in texts], "outputs": [b for _, b in texts]}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _OTHER, folder, stdin=-1, stdout=-1)
    text = json.dumps([PROGRAM, json.dumps(order), AT_ONCE, ROUNDS + 1])
    out, _ = await process.communicate(text.encode())
    return AT_ONCE * CASES / median([float(line) for line in out.split()][1:])
