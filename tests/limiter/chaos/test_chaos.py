"""Real processes on loopback, disturbed by a seed, judged by what their journals say.

FAIRBOX_CHAOS_SEED replays one seed, FAIRBOX_CHAOS_S sets the seconds. Faults come at the same times and hit the same
victims; what the processes do in between depends on the machine, so a seed is worth several tries.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from limiter.config import LEADERS as ALL_LEADERS
from tests.limiter.chaos.checker import problems
from tests.limiter.chaos.cluster import LIMIT, Cluster
from tests.limiter.chaos.history import History, read_history
from tests.limiter.chaos.nemesis import Nemesis

LEADERS = tuple(sorted({"file", "none"} & set(ALL_LEADERS)))
"""How limiters come to lead: odd seeds without a roster, even ones with it."""
_SHORT_S = 8.0
_SOAK_S = 600.0
_SEED_S = 30.0
"""Of one seed in a soak."""
_CHOSEN = {
    3: ("kill limiter", "cut client", "stall executor"),
    8: ("kill limiter", "kill client", "kill executor", "pause limiter", "reset"),
}
"""Seeds of the short run, and kinds that together hit everybody."""


async def one_run(folder: Path, seed: int, seconds: float, kinds: tuple[str, ...] = ()) -> History:
    """Disturbs one cluster for that long. AssertionError with all that is known when something did not hold."""
    leader = LEADERS[seed % len(LEADERS)]
    async with Cluster(folder, seed, leader=leader) as cluster:
        await cluster.ready()
        nemesis = Nemesis(cluster, seed, kinds)
        await nemesis.torment(seconds)
        found = await cluster.returned()
        found += await cluster.end_clients()
        found += await cluster.emptied()
    history = read_history(folder, {"code": LIMIT})
    found += problems(history)
    ends = Counter(end for request in history.requests for end in request.ends)
    summary = f"seed {seed}, leader={leader}, {seconds:.0f} s of {', '.join(nemesis.kinds)}: "
    summary += f"{len(history.runs)} runs, {dict(ends)}"
    print(summary)  # noqa: T201 - which seed it was
    assert not found, "\n".join(
        [
            f"{len(found)} problems, the first of them:",
            *found[:20],
            summary,
            *nemesis.log,
            f"replay: FAIRBOX_CHAOS_SEED={seed} FAIRBOX_CHAOS_S={seconds:g} python -m pytest {__file__} -k seed",
            f"journals: {folder}",
        ]
    )
    assert history.runs, summary
    assert ends["granted"] > 0, summary
    return history


def _seeds() -> dict[int, tuple[str, ...]]:
    """The seed that is asked for, or those of the short run."""
    seed = os.environ.get("FAIRBOX_CHAOS_SEED")
    return {int(seed): _CHOSEN.get(int(seed), ())} if seed else _CHOSEN


@pytest.mark.parametrize("seed", _seeds())
async def test_seed_breaks_no_promise(seed: int, tmp_path: Path) -> None:
    seconds = float(os.environ.get("FAIRBOX_CHAOS_S", _SHORT_S))
    await one_run(tmp_path, seed, seconds, _seeds()[seed])


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_many_seeds_break_no_promise(tmp_path: Path) -> None:
    first = int(os.environ.get("FAIRBOX_CHAOS_SEED", random.SystemRandom().randrange(1 << 30)))
    end = time.monotonic() + float(os.environ.get("FAIRBOX_CHAOS_S", _SOAK_S))
    seed = first
    while time.monotonic() < end:
        folder = tmp_path / str(seed)
        folder.mkdir()
        await one_run(folder, seed, _SEED_S)
        seed += 1
