"""The limiter beside what it is compared against, each in the same run.

`python -m benchmarks.bench_limiter [PART...]`; parts: pairs, many, queue, hop, restart; all of them by default. Every
limiter is a process of its own, limit 10. Read CPU time and ratios: pairs per second depend on the machine and its
load. Prints a table and writes benchmarks/out/limiter.json: a list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from benchmarks import limiter_hop, limiter_many, limiter_pairs, limiter_queue, limiter_restart
from benchmarks.limiter_rows import Row
from benchmarks.limiter_server import ROOT

OUT = ROOT / "benchmarks" / "out" / "limiter.json"
PARTS = {
    "pairs": limiter_pairs.rows,
    "many": limiter_many.rows,
    "queue": limiter_queue.rows,
    "hop": limiter_hop.rows,
    "restart": limiter_restart.rows,
}


def line(row: Row, width: int) -> str:
    """One line of the table."""
    value = f"{row.value:>10.3f} {row.unit:<4}" if row.value is not None else f"{'-':>10} {'':<4}"
    verdict = "" if row.bar is None else f"bar {row.bar:.4g}: {'met' if row.ok else 'MISSED'}"
    against = f"({row.against})" if row.against else ""
    return f"{row.name:<{width}} {value} {verdict:<18} {against}".rstrip()


def main(parts: list[str]) -> int:
    """0 when every bar is met, 1 when one is not, 2 when there is no such part."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"bench_limiter: {unknown[0]!r} is not a part, must be one of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    results = []
    for name, rows in PARTS.items():
        if not parts or name in parts:
            results += asyncio.run(rows())
    width = max(len(row.name) for row in results)
    for row in results:
        print(line(row, width))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps([asdict(row) for row in results], indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.ok is not False for row in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
