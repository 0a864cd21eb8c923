"""Makes everything that a file of rows needs: many repositories at once, with what failed and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairbox.clock import Clock, MonotonicClock
from rollout.data.repos.failures import RepoError
from rollout.data.repos.store import Checkout, RepoStore
from rollout.data.repos.table import FetchStatistics, FetchTable
from rollout.data.repos.wants import Want

__all__ = ["Progress", "fetch_all"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A repository that an attempt has ended for."""

    repo: str
    wanted: int
    """States of it that were asked for in this attempt."""
    failures: tuple[RepoError, ...]
    again: bool
    """Whether those that failed will be tried again."""
    seconds: float
    statistics: FetchStatistics


async def fetch_all(
    store: RepoStore,
    wants: Iterable[Want],
    *,
    attempts: int = 3,
    report: Callable[[Progress], None] = lambda _: None,
    clock: Clock | None = None,
) -> dict[Want, Checkout | RepoError]:
    """The state of each want, or why it can't be had. As many repositories at once as the store allows."""
    clock = clock or MonotonicClock()
    lacking: dict[str, list[Want]] = {}
    for want in dict.fromkeys(wants):
        lacking.setdefault(want.repo, []).append(want)
    table = FetchTable(list(lacking), parallel=store.parallel, attempts=attempts)
    found: dict[Want, Checkout | RepoError] = {}
    running: dict[asyncio.Task[dict[Want, Checkout | RepoError]], tuple[str, float]] = {}
    async with asyncio.TaskGroup() as tasks:
        while not table.finished:
            for repo in table.start(clock.now()):
                task = tasks.create_task(store.make_all(repo, lacking[repo]), name=f"repository {repo}")
                running[task] = (repo, clock.now())
            wait_s = table.wait_s(clock.now())
            if not running:
                await asyncio.sleep(wait_s or 0.0)
                continue
            done, _ = await asyncio.wait(running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                repo, began = running.pop(task)
                made = task.result()
                found |= made
                failed = {want: error for want, error in made.items() if isinstance(error, RepoError)}
                passing = [want for want, error in failed.items() if error.kind.may_pass]
                again = table.ended(repo, clock.now(), failed=bool(failed), may_pass=bool(passing))
                seconds = clock.now() - began
                report(Progress(repo, len(made), tuple(failed.values()), again, seconds, table.statistics()))
                lacking[repo] = passing
    return found
