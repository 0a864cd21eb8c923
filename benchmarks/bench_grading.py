"""Measures the cost of grading through the reward functions.

`python -m benchmarks.bench_grading [PART...]`; parts: cases (FAIRBOX_PRIME_CODE: beside another judge), published
(needs FAIRBOX_DATA), corpus (labelled programs); all of them by default. Prints a table and writes
benchmarks/out/grading.json: a list of {name, value, unit, bar, ok, against}.
"""

from __future__ import annotations

import sys

from benchmarks import grading_cases, grading_corpus, grading_published
from benchmarks.table import run

PARTS = {
    "cases": grading_cases.cases_rows,
    "published": grading_published.published_rows,
    "corpus": grading_corpus.corpus_rows,
}

if __name__ == "__main__":
    sys.exit(run("grading", PARTS, sys.argv[1:]))
