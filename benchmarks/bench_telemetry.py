"""Measures the cost of telemetry.

`python -m benchmarks.bench_telemetry [PART...]`; parts: traces. Prints a table and writes
benchmarks/out/telemetry.json: a list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import sys

from benchmarks import telemetry_cost
from benchmarks.table import run

PARTS = {"traces": telemetry_cost.rows}

if __name__ == "__main__":
    sys.exit(run("telemetry", PARTS, sys.argv[1:]))
