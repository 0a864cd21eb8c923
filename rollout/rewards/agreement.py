"""Counts, for each group of answers to one problem, what its tests say beyond the score: from the parts `case/ID` that
rewards for programs have with `case_parts`. Pure.

A test that all answers of a group pass, or none does, tells nothing about them; one that no answer to its problem ever
passes, though answers pass others, may be wrong.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

CASE = "case/"
"""Begins the name of a part that is about one test, behind the name of its reward function."""


def is_case(part: str) -> bool:
    """Says whether a part is about one test."""
    return part.startswith(CASE) or f"/{CASE}" in part


class CaseAgreement:
    """`add` each answer's parts; holds two numbers for each test of each group."""

    def __init__(self) -> None:
        self._groups: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)
        """Group -> test -> answers that passed it, answers that it was run on."""

    def add(self, group: str, parts: Mapping[str, float]) -> None:
        """Takes in the parts of one answer's reward."""
        for name, value in parts.items():
            if is_case(name):
                counts = self._groups[group].setdefault(name, [0, 0])
                counts[0] += value == 1.0
                counts[1] += 1

    def flat(self) -> dict[str, float]:
        """Means over the groups of shares of their tests, by name; empty if there is none.

        `tests/separating`: some answers pass it and some don't; `tests/all_pass`, `tests/none_passes`; `tests/suspect`:
        none passes it, though some answer passes another test of the problem.
        """
        shares: defaultdict[str, list[float]] = defaultdict(list)
        for tests in self._groups.values():
            none = sum(not passed for passed, _ in tests.values()) / len(tests)
            every = sum(passed == runs for passed, runs in tests.values()) / len(tests)
            shares["separating"].append(1 - none - every)
            shares["all_pass"].append(every)
            shares["none_passes"].append(none)
            shares["suspect"].append(none if none < 1 else 0.0)
        return {f"tests/{name}": statistics.fmean(values) for name, values in shares.items()}

    def suspects(self) -> dict[str, list[str]]:
        """Group -> its tests that no answer passes, though some answer passes another."""
        found = {}
        for group, tests in self._groups.items():
            never = [name for name, (passed, _) in tests.items() if not passed]
            if 0 < len(never) < len(tests):
                found[group] = never
        return found
