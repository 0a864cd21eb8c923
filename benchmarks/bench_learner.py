"""What training steps take: memory and time of a small model on the CPU, whole and split.

`python -m benchmarks.bench_learner [PART...]`; parts: memory. Prints a table and writes benchmarks/out/learner.json: a
list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import sys

from benchmarks import learner_memory
from benchmarks.table import run

PARTS = {"memory": learner_memory.rows}

if __name__ == "__main__":
    sys.exit(run("learner", PARTS, sys.argv[1:]))
