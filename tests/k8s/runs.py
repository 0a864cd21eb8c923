"""Records of a load's programs, and a check that the limit held. Pure: lines of `load` in, facts out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SLEEP_S = 0.4
"""Duration of each program in `load`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One program, by its own word. Times in seconds of the machine's clock."""

    begin: float | None
    end: float | None
    served_by: str
    error: str
    asked: float
    answered: float


def read(text: str) -> list[Run]:
    """The lines of a load's log that are runs."""
    return [Run(**json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def most_at_once(runs: Sequence[Run], killed: Sequence[float] = ()) -> int:
    """The most programs that surely ran at the same instant. One that never told its end ran for as long as it sleeps,
    unless something was killed meanwhile, and no longer than until its caller heard of it."""
    edges: list[tuple[float, int]] = []
    for run in runs:
        if run.begin is None:
            continue
        end = run.end
        if end is None:
            end = min([at for at in killed if at >= run.begin] + [run.answered, run.begin + SLEEP_S])
        edges += [(run.begin, 1), (end, -1)]
    most = now = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


def by_server(runs: Sequence[Run]) -> Counter[str]:
    """Number of runs that each server served."""
    return Counter(run.served_by for run in runs if run.served_by)
