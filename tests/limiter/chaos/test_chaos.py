"""Real processes on loopback, disturbed by a seed, judged by what their journals say.

FAIRBOX_CHAOS_SEED replays one seed, FAIRBOX_CHAOS_S sets the seconds, FAIRBOX_CHAOS_N the number of short histories in
a soak. Faults come at the same times and hit the same victims; what the processes do in between depends on the machine,
so a seed is worth several tries. `python -m tests.limiter.chaos.test_chaos SEED [N]` runs short histories alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.limiter.chaos.checker import problems
from tests.limiter.chaos.cluster import LIMIT, Cluster
from tests.limiter.chaos.history import History, read_history
from tests.limiter.chaos.nemesis import Nemesis
from tests.limiter.chaos.world import LEADERS, World, draw

_SHORT_S = 8.0
_HISTORIES = 600
"""In a soak, each of few seconds."""
_HISTORY_S = 5.0
_AT_ONCE = 6
"""They wait more than they compute."""
_CHOSEN = {
    3: ("kill limiter", "cut client", "stall executor"),
    8: ("kill limiter", "kill client", "kill executor", "pause limiter", "pause executor", "reset"),
}
"""Seeds of the short run, and kinds that together hit everybody."""
_HOLDERS = World("file", clients=2, executors=0, tasks=5, unary=1, holds=True, queue_s=10.0, long_s=(0.5, 5.0))


async def one_run(
    folder: Path, seed: int, seconds: float, world: World, kinds: tuple[str, ...] = ()
) -> tuple[History, Counter[str]]:
    """Disturbs one cluster for that long, and counts. AssertionError with all that is known when something did not
    hold."""
    async with Cluster(folder, seed, world) as cluster:
        await cluster.ready()
        nemesis = Nemesis(cluster, seed, kinds)
        await nemesis.torment(seconds)
        found = await cluster.returned()
        found += await cluster.end_clients()
        found += await cluster.emptied()
    history = read_history(folder, {"code": LIMIT})
    found += problems(history)
    ends = Counter(end for request in history.requests for end in request.ends)
    summary = f"seed {seed}, {world}, {seconds:.0f} s of {', '.join(nemesis.kinds)}: "
    summary += f"{len(history.runs)} runs, {dict(ends)}"
    assert not found, "\n".join(
        [
            f"{len(found)} problems, the first of them:",
            *found[:20],
            summary,
            *nemesis.log,
            f"journals: {folder}",
        ]
    )
    assert ends["granted"] > 0, summary
    faults = Counter(line.split(maxsplit=1)[1].rsplit(maxsplit=3)[0] for line in nemesis.log)
    return history, faults + Counter(requests=len(history.requests), runs=len(history.runs), histories=1)


def _seeds() -> dict[int, tuple[str, ...]]:
    """The seed that is asked for, or those of the short run."""
    seed = os.environ.get("FAIRBOX_CHAOS_SEED")
    return {int(seed): _CHOSEN.get(int(seed), ())} if seed else _CHOSEN


async def many(folder: Path, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Runs short histories, several at once. What they were, and a line for each that broke a promise."""
    seeds, total, failed = iter(range(first, first + count)), Counter[str](), list[str]()

    async def worker() -> None:
        for seed in seeds:
            place = folder / str(seed)
            place.mkdir()
            try:
                total.update((await one_run(place, seed, _HISTORY_S, draw(seed)))[1])
            except Exception as error:
                (place / "why.txt").write_text(f"{type(error).__name__}: {error}")
                why = str(error).splitlines()[1:2] or [repr(error)]
                failed.append(f"python -m tests.limiter.chaos.test_chaos {seed}: {why[0]} ({place})")
                print(failed[-1], flush=True)  # noqa: T201 - as soon as it is known
            else:
                shutil.rmtree(place)

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    return total, failed


async def test_chosen_histories_break_no_promise(tmp_path: Path) -> None:
    """All at once. One is of holds and unary callers without an executor."""
    seconds = float(os.environ.get("FAIRBOX_CHAOS_S", _SHORT_S))
    runs = [(seed, seconds, World(LEADERS[seed % len(LEADERS)]), kinds) for seed, kinds in _seeds().items()]
    if "FAIRBOX_CHAOS_SEED" not in os.environ:
        runs.append((5, _SHORT_S, _HOLDERS, ("kill limiter", "end limiter", "half-open", "reset")))
    places = [tmp_path / str(seed) for seed, *_ in runs]
    for place in places:
        place.mkdir()
    work = (one_run(place, *run) for place, run in zip(places, runs, strict=True))
    ended = await asyncio.gather(*work, return_exceptions=True)
    failed = [each for each in ended if isinstance(each, BaseException)]
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {len(runs)} histories", failed)
    assert all(history.runs for history, _ in ended)  # type: ignore[misc]


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_many_short_histories_break_no_promise(tmp_path: Path) -> None:
    first = int(os.environ.get("FAIRBOX_CHAOS_SEED", random.SystemRandom().randrange(1 << 30)))
    total, failed = await many(tmp_path, first, int(os.environ.get("FAIRBOX_CHAOS_N", _HISTORIES)))
    print(dict(total))  # noqa: T201 - what they were
    assert not failed, "\n".join(failed)


if __name__ == "__main__":
    first, *rest = (int(word) for word in sys.argv[1:])
    found, broken = asyncio.run(many(Path(tempfile.mkdtemp()), first, *(rest or [1])))
    print(dict(found), f"{len(broken)} failed", sep="\n")  # noqa: T201
    sys.exit(bool(broken))
