"""Measures the cost of the rollout tier, apart from engines and tools.

`python -m benchmarks.bench_rollout [PART...]`; parts: loop, schedule, tool, many, page; all of them by default. Prints
a table and writes benchmarks/out/rollout.json: a list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import sys

from benchmarks import rollout_loop, rollout_many, rollout_page, rollout_schedule, rollout_tool
from benchmarks.table import run

PARTS = {
    "loop": rollout_loop.rows,
    "schedule": rollout_schedule.rows,
    "tool": rollout_tool.rows,
    "many": rollout_many.rows,
    "page": rollout_page.rows,
}

if __name__ == "__main__":
    sys.exit(run("rollout", PARTS, sys.argv[1:]))
