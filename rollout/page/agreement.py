"""Which parts of the reward agree with nothing: with the score no more than with any other part. Pure.

Held are the numbers of each scored row, of `MOST_PARTS` parts at most, and two numbers for each test of a program, of
which `MOST_RUNS` are looked at.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Mapping
from operator import mul
from typing import Any

from rollout.page.bodies import finite
from rollout.rewards.agreement import CaseAgreement, is_case

MOST_PARTS = 24
"""Parts that are looked at, the first that come; as many as the page has curves for."""
LEAST_ROWS, NOTHING = 100, 0.1
"""Correlations below `NOTHING` are none, if there are as many rows: of a hundred, a part that agrees at 0.3 is below it
once in sixty draws; of thirty, once in nine."""
MOST_RUNS = 1 << 21
"""Results of tests that are looked at: forty for each of 50,000 rows."""
_MOST_CHARS = 200
"""Parts with longer names are left out."""
_MOST_SUSPECTS, _MOST_TESTS = 50, 20


class PartAgreement:
    """`add` each scored row; `facts()` names parts, and tests of programs, that tell nothing."""

    def __init__(self) -> None:
        self.truncated = False
        """Says whether there were more results of tests than are looked at."""
        self._scores = array("d")
        self._columns: dict[str, array[float]] = {}
        self._tests = CaseAgreement()
        self._left = MOST_RUNS
        self._first: dict[str, int] = {}
        """Group -> its first row that has tests."""

    def add(self, number: int, group: str, score: float, parts: Mapping[str, Any]) -> None:
        """Takes a row in. What is no finite number is missing."""
        rows, cases = len(self._scores), {}
        self._scores.append(score)
        for name, value in parts.items():
            if (known := finite(value)) is None or len(name) > _MOST_CHARS:
                continue
            if is_case(name):
                cases[name] = known
            elif name in self._columns or len(self._columns) < MOST_PARTS:
                column = self._columns.setdefault(name, array("d"))
                column.extend([math.nan] * (rows - len(column)))
                column.append(known)
        self._left -= len(cases)
        if self._left < 0:
            self.truncated = True
        elif cases:
            self._first.setdefault(group, number)
            self._tests.add(group, cases)

    def facts(self) -> dict[str, Any]:
        """The parts, and the tests that no answer to their problem passes though some pass others."""
        suspects = [
            {"row": self._first[group], "group": group, "tests": tests[:_MOST_TESTS]}
            for group, tests in self._tests.suspects().items()
        ]
        return {"parts": self._parts(), "suspects": suspects[:_MOST_SUSPECTS]}

    def _parts(self) -> list[dict[str, Any]]:
        score = _centred(self._scores, len(self._scores))
        centred = {name: _centred(column, len(score)) for name, column in self._columns.items()}
        found = []
        for name, own in centred.items():
            known = [value for value in self._columns[name] if not math.isnan(value)]
            if len(known) < LEAST_ROWS:
                continue
            if not any(own):
                found.append({"part": name, "rows": len(known), "always": known[0], "with": "", "correlation": 0.0})
                continue
            others = [("the score", score), *(each for each in centred.items() if each[0] != name)]
            most, other = max((abs(sum(map(mul, own, theirs))), other) for other, theirs in others)
            if most < NOTHING:
                found.append({"part": name, "rows": len(known), "always": None, "with": other, "correlation": most})
        return found


def _centred(column: array[float], rows: int) -> list[float]:
    """Differences from the mean, scaled to a length of 1, so that their product is Pearson's correlation; a row without
    the number counts as the mean, and a constant is 0 everywhere."""
    known = [value for value in column if not math.isnan(value)]
    mean = statistics.fmean(known) if known else 0.0
    found = [0.0 if math.isnan(value) else value - mean for value in column]
    length = math.hypot(*found)
    spread = length > 1e-9 * math.hypot(*known)
    return [value / length if spread else 0.0 for value in found] + [0.0] * (rows - len(found))
