"""Each tier is cut off while programs run: the limit holds, nothing leaks, and no call outlives its deadlines."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.k8s.netns.tiers import DEADLINE_S, LIMIT, runs_of, tiers, unusable
from tests.k8s.runs import most_at_once

pytestmark = [pytest.mark.partitions, pytest.mark.skipif(bool(unusable()), reason=unusable())]

LOAD_S = 20.0
CUT_S = 7.0
SLACK_S = 10.0
"""For a machine that is busy with other things."""


@pytest.mark.parametrize("tier", ["limiter", "executor", "client"])
async def test_a_tier_that_is_cut_off_breaks_no_limit_and_leaks_nothing(tier: str) -> None:
    async with tiers() as made:
        load = await made.load(LOAD_S)
        deadline = time.monotonic() + 60
        while made.bucket().bound < LIMIT:
            assert time.monotonic() < deadline, "no program runs"
            await asyncio.sleep(0.1)
        await asyncio.sleep(3.0)
        await made.cut(tier, CUT_S)
        healed = time.time()
        runs = await runs_of(load, LOAD_S + 2 * DEADLINE_S + SLACK_S)
        before = [run for run in runs if run.end and run.end < healed - CUT_S]
        after = [run for run in runs if run.end and run.begin and run.begin > healed]
        assert len(before) >= LIMIT
        assert after, f"nothing runs after healing: {[run.error for run in runs][-5:]}"
        assert LIMIT - 1 <= most_at_once(runs) <= LIMIT
        assert max(run.answered - run.asked for run in runs) <= 2 * DEADLINE_S + SLACK_S
        deadline = time.monotonic() + 60
        while (made.bucket().held, made.bucket().queued) != (0, 0):
            assert time.monotonic() < deadline, made.bucket()
            await asyncio.sleep(0.5)
