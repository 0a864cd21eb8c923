"""`python -m benchmarks NAME [PART...]` (`make bench-NAME`): takes figures of the whole of NAME, or of parts of it.

Prints them as a table and writes benchmarks/out/NAME.json: a list of {name, value, unit, bar, ok, against}. Ends with 0
when every bar is met, with 1 when one is not, and with 2 when there is no such part.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import Row

NAMES = ("executor", "limiter", "grading", "images", "rollout", "durable", "training")
"""Each is a module here with `PARTS`; they are imported when asked for, because some need torch."""
OUT = Path(__file__).parent / "out"

Parts = Mapping[str, Callable[[], Awaitable[list[Row]]]]


def main(words: list[str]) -> int:
    """Exit status."""
    name, *wanted = words or [""]
    if name not in NAMES:
        print(f"benchmarks: {name!r} is not a benchmark, must be one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    parts: Parts = importlib.import_module(f"benchmarks.{name}").PARTS
    unknown = [part for part in wanted if part not in parts]
    if unknown:
        print(f"benchmarks: {unknown[0]!r} is no part of {name}, must be one of {', '.join(parts)}", file=sys.stderr)
        return 2
    results = [row for part in wanted or parts for row in asyncio.run(_taken(parts[part]))]
    width = max(len(row.name) for row in results)
    for row in results:
        print(_line(row, width))
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in results], indent=2) + "\n"
    (OUT / f"{name}.json").write_text(text, encoding="utf-8")
    return 0 if all(row.ok is not False for row in results) else 1


async def _taken(part: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
    return await part()


def _line(row: Row, width: int) -> str:
    value = f"{row.value:>10.3f} {row.unit:<4}" if row.value is not None else f"{'-':>10} {'':<4}"
    verdict = "" if row.bar is None else f"bar {row.bar:.4g}: {'met' if row.ok else 'MISSED'}"
    against = f"({row.against})" if row.against else ""
    return f"{row.name:<{width}} {value} {verdict:<18} {against}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
