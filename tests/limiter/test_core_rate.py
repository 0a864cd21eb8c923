"""Rates: how many leases a bucket grants per second, beside how many it has in flight."""

from __future__ import annotations

import pytest

from limiter.core import BucketLimits, LimiterCore, RejectReason, SessionKind
from limiter.core.bucket import RateBucket
from limiter.core.effects import Queued, Rejected
from limiter.core.events import Acquire, Cancel, Hello, Tick
from tests.limiter.cores import acquire, granted, make_core, only


def test_a_rate_starts_empty_and_grants_at_the_very_deadline() -> None:
    core = make_core(10, rate_per_s=2.0)
    assert granted(acquire(core, "c", "a")) == []
    assert granted(acquire(core, "c", "b")) == []
    assert core.next_deadline() == 0.5
    assert granted(core.handle(Tick(), 0.499)) == []
    assert granted(core.handle(Tick(), 0.5)) == ["a"]
    assert core.next_deadline() == 1.0
    assert granted(core.handle(Tick(), 1.0)) == ["b"]


@pytest.mark.parametrize("rate", [0.7, 3.0, 7.1, 333.3])
def test_deadlines_of_a_rate_are_never_too_early(rate: float) -> None:
    start = 98_765.4321
    core = LimiterCore(1, [BucketLimits("code", 1000, start_by=9999.0, rate_per_s=rate)], now=start)
    core.handle(Hello("c", SessionKind.CLIENT), start)
    for number in range(200):
        core.handle(Acquire("c", f"r{number}"), start)
    for _ in range(200):
        due = core.next_deadline()
        assert due is not None
        assert len(granted(core.handle(Tick(), due))) == 1
    assert due == pytest.approx(start + 200 / rate)


def test_a_burst_is_saved_up_and_no_more() -> None:
    core = make_core(10, rate_per_s=1.0, burst=3)
    for name in "abc":
        core.handle(Cancel("c", name), 0.0)
    core.handle(Tick(), 100.0)
    first = [granted(core.handle(Acquire("c", str(number)), 100.0)) for number in range(5)]
    assert first == [["0"], ["1"], ["2"], [], []]
    assert granted(core.handle(Tick(), 101.0)) == ["3"]


def test_retry_after_follows_the_rate() -> None:
    core = make_core(10, rate_per_s=0.5, max_queued=4)
    for number in range(4):
        only(Queued, acquire(core, "c", f"r{number}"))
    rejected = only(Rejected, acquire(core, "c", "more"))
    assert (rejected.reason, rejected.retry_after) == (RejectReason.QUEUE_FULL, 8.0)


def test_a_rate_bucket_is_never_negative() -> None:
    bucket = RateBucket(3.0, 5, 0.0)
    now = 0.0
    for number in range(1000):
        count = 1 + number % 5
        now = max(now, bucket.ready_at(count)) + (0.1 if number % 7 else 10.0)
        assert bucket.available(now) >= count - 1e-9
        bucket.take(count, now)
        assert 0 <= bucket.available(now) <= 5
