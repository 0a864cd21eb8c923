"""Measures the cost to the limiter of an acquire and its release.

`python -m benchmarks.bench_limiter [PART...]`; parts: pairs, many; both by default. The limiter is its own process,
limit 10. Read CPU time: pairs per second depend on the machine and its load. Prints a table and writes
benchmarks/out/limiter.json: a list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import sys

from benchmarks import limiter_many, limiter_pairs
from benchmarks.table import run

PARTS = {"pairs": limiter_pairs.rows, "many": limiter_many.rows}

if __name__ == "__main__":
    sys.exit(run("limiter", PARTS, sys.argv[1:]))
