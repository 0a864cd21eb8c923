"""The adaptive limit, by itself and in a bucket."""

from __future__ import annotations

from typing import Any

from limiter.core import BucketLimits, LeaseId, LimiterCore, ReleaseOutcome
from limiter.core.bucket import AimdLimit
from limiter.core.effects import Granted
from limiter.core.events import Acquire, Configure, Release
from tests.limiter.cores import make_core, only

ADAPTIVE: dict[str, Any] = {"adaptive": True}


def hold(core: LimiterCore, count: int, first: int = 0, now: float = 0.0) -> list[LeaseId]:
    return [
        only(Granted, core.handle(Acquire("cd"[number % 2], f"r{number}"), now)).lease
        for number in range(first, first + count)
    ]


def end(core: LimiterCore, lease: LeaseId, outcome: ReleaseOutcome) -> None:
    for session in "cd":
        core.handle(Release(session, lease, outcome), 0.0)


def limit_of(core: LimiterCore) -> int:
    return core.statistics(0.0).bucket().effective_limit


def test_overload_of_one_generation_decreases_once() -> None:
    core = make_core(8, **ADAPTIVE)
    leases = hold(core, 8)
    assert limit_of(core) == 8
    end(core, leases[0], ReleaseOutcome.OVERLOADED)
    end(core, leases[1], ReleaseOutcome.TIMEOUT)
    assert limit_of(core) == 6
    for lease in leases[2:]:
        end(core, lease, ReleaseOutcome.UNUSED)
    (later,) = hold(core, 1, first=20)
    end(core, later, ReleaseOutcome.TIMEOUT)
    assert limit_of(core) == 5
    for number in range(30, 60):
        (later,) = hold(core, 1, first=number)
        end(core, later, ReleaseOutcome.OVERLOADED)
    assert limit_of(core) == 1, "the floor holds"


def test_good_work_raises_the_limit_by_about_one_per_window_and_never_above_the_cap() -> None:
    limit = AimdLimit(10)
    limit.overloaded(LeaseId(1, 1), LeaseId(1, 1))
    assert limit.limit == 8
    ends = 0
    while limit.limit < 9:
        limit.good(held=4)
        ends += 1
    assert ends in (8, 9)
    for _ in range(1000):
        limit.good(held=10)
    assert limit.limit == 10


def test_work_at_less_than_half_of_the_limit_raises_nothing() -> None:
    limit = AimdLimit(10)
    limit.overloaded(LeaseId(1, 1), LeaseId(1, 1))
    for _ in range(100):
        limit.good(held=3)
    assert limit.limit == 8


def test_a_limit_at_its_cap_goes_with_the_cap_and_a_lowered_one_stays_below_it() -> None:
    core = make_core(4, **ADAPTIVE)
    core.handle(Configure(BucketLimits("code", 8, adaptive=True), 1), 0.0)
    assert limit_of(core) == 8
    (lease,) = hold(core, 1)
    end(core, lease, ReleaseOutcome.OVERLOADED)
    core.handle(Configure(BucketLimits("code", 3, adaptive=True), 2), 0.0)
    assert limit_of(core) == 3
    core.handle(Configure(BucketLimits("code", 8), 3), 0.0)
    assert limit_of(core) == 8
