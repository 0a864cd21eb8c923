"""Runs the parts of a benchmark, prints their figures as a table and writes them as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import Row

OUT = Path(__file__).parent / "out"


def run(name: str, parts: Mapping[str, Callable[[], Awaitable[list[Row]]]], wanted: list[str]) -> int:
    """0 when every bar is met, 1 when one is not, 2 when there is no such part."""
    unknown = [part for part in wanted if part not in parts]
    if unknown:
        print(f"bench_{name}: {unknown[0]!r} is not a part, must be one of {', '.join(parts)}", file=sys.stderr)
        return 2

    async def rows(part: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        return await part()

    results = []
    for part, take in parts.items():
        if not wanted or part in wanted:
            results += asyncio.run(rows(take))
    width = max(len(row.name) for row in results)
    for row in results:
        print(_line(row, width))
    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in results], indent=2) + "\n"
    (OUT / f"{name}.json").write_text(text, encoding="utf-8")
    return 0 if all(row.ok is not False for row in results) else 1


def _line(row: Row, width: int) -> str:
    value = f"{row.value:>10.3f} {row.unit:<4}" if row.value is not None else f"{'-':>10} {'':<4}"
    verdict = "" if row.bar is None else f"bar {row.bar:.4g}: {'met' if row.ok else 'MISSED'}"
    against = f"({row.against})" if row.against else ""
    return f"{row.name:<{width}} {value} {verdict:<18} {against}".rstrip()
