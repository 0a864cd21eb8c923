"""The limiter beside what it is compared against, each in the same run.

`python -m benchmarks.bench_limiter [PART...]`; parts: pairs, many, queue, hop, restart; all of them by default. Every
limiter is a process of its own, limit 10. Read CPU time and ratios: pairs per second depend on the machine and its
load. Prints a table and writes benchmarks/out/limiter.json: a list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import sys

from benchmarks import limiter_hop, limiter_many, limiter_pairs, limiter_queue, limiter_restart
from benchmarks.table import run

PARTS = {
    "pairs": limiter_pairs.rows,
    "many": limiter_many.rows,
    "queue": limiter_queue.rows,
    "hop": limiter_hop.rows,
    "restart": limiter_restart.rows,
}

if __name__ == "__main__":
    sys.exit(run("limiter", PARTS, sys.argv[1:]))
