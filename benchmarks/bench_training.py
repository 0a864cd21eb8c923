"""Measures the gain of asynchronous training over the synchronous loop.

`python -m benchmarks.bench_training [PART...]`; parts: modes, the only one. Prints a table and writes
benchmarks/out/training.json: a list of {name, value, unit, bar, ok, against}. The first run writes a practice policy,
which takes two minutes.
"""

from __future__ import annotations

import sys

from benchmarks import training_modes
from benchmarks.table import run

PARTS = {"modes": training_modes.rows}

if __name__ == "__main__":
    sys.exit(run("training", PARTS, sys.argv[1:]))
