"""Random histories of the whole limiter: nothing is exceeded, lost, stuck or left over, whatever crashes or is cut off.

A failure names its seed and how to replay it. `-m soak` runs FAIRBOX_SIM_SEEDS seeds, 5,000 by default.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from limiter.core import session_rules
from tests.limiter.sim.scenario import EXTENDED_FROM, Fault, draw
from tests.limiter.sim.simulation import simulate

_CHOSEN = (40, 120, 540)
"""First seeds of groups, which together draw every fault often."""
_AT_ONCE = 20
_FEW = _AT_ONCE // 2
_SOAK_SEEDS = int(os.environ.get("FAIRBOX_SIM_SEEDS", "5000"))
_SOAK_FROM = 1000
_ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Clients log each loss; there are thousands."""
    logger = logging.getLogger("limiter")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def swarm(seeds: range) -> Counter[str]:
    """Runs the seeds; fails with what it found about each that is bad."""
    counts: Counter[str] = Counter()
    bad = []
    for seed in seeds:
        verdict = simulate(draw(seed))
        counts += verdict.counts
        if verdict.violations:
            bad.append(str(verdict))
    assert not bad, "\n".join(bad)
    return counts


@pytest.mark.parametrize("first", _CHOSEN)
def test_swarm(first: int) -> None:
    counts = swarm(range(first, first + _AT_ONCE))
    assert counts["programs"] > 20 * _AT_ONCE, "a simulation of nothing finds nothing"
    assert counts["answer: killed"]
    assert counts["leads"] > _AT_ONCE


def test_swarm_with_more_kinds_of_buckets_and_callers() -> None:
    counts = swarm(range(EXTENDED_FROM, EXTENDED_FROM + _FEW))
    for what in ("unary: granted", "bucket changed", "grants"):
        assert counts[what] > _FEW, f"{what}: a simulation of nothing finds nothing"


def test_hellos_that_take_many_steps_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rules, "SLICE", 3)
    swarm(range(_FEW // 2))
    swarm(range(EXTENDED_FROM, EXTENDED_FROM + _FEW // 2))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_long_swarm() -> None:
    swarm(range(_SOAK_FROM, _SOAK_FROM + _SOAK_SEEDS))
    swarm(range(EXTENDED_FROM, EXTENDED_FROM + _SOAK_SEEDS))


def test_every_fault_is_drawn_often() -> None:
    seeds = [seed for first in _CHOSEN for seed in range(first, first + _AT_ONCE)]
    drawn = Counter(fault for seed in seeds for fault in draw(seed).faults)
    assert set(drawn) == set(Fault)
    assert min(drawn.values()) >= 5


def test_history_of_a_seed_is_the_same_in_every_run_and_process() -> None:
    seed = 17
    verdict = simulate(draw(seed))
    assert simulate(draw(seed)).digest == verdict.digest
    assert simulate(draw(seed + 1)).digest != verdict.digest
    done = subprocess.run(
        [sys.executable, "-m", "tests.limiter.sim", str(seed), "--digest"],
        cwd=_ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split()[:2] == [str(seed), verdict.digest], done.stderr
