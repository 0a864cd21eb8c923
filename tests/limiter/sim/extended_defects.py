"""Known mistakes that show only where there are other buckets than plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limiter.core.bucket import Bucket, RateBucket
from limiter.core.waiting import FairQueue
from tests.limiter.sim.defects import Defect
from tests.limiter.sim.scenario import EXTENDED_FROM, Fault


def _forget_the_rate(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, count, now: None


def _stay_with_one_tenant(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: self.remove(request)


def _never_lower(set_cap: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Bucket) -> None:
        before = self.cap if hasattr(self, "cap") else 0
        set_cap(self)
        self.cap = max(before, self.cap)

    return wrong


EXTENDED_DEFECTS = (
    Defect(
        "grants do not count against the rate",
        ((RateBucket, "take", _forget_the_rate),),
        (Fault.RESET,),
        frozenset({"rate"}),
        {"program": 0.2, "think": 0.2},
        first=EXTENDED_FROM,
    ),
    Defect(
        "a tenant keeps its turn after a grant",
        ((FairQueue, "pop", _stay_with_one_tenant),),
        (Fault.RESET,),
        frozenset({"fair"}),
        {"think": 0.2, "clients": 10},
        first=EXTENDED_FROM,
    ),
    Defect(
        "a lowered limit does not keep back what waits",
        ((Bucket, "_set_cap", _never_lower),),
        (Fault.RESET,),
        frozenset({"limit"}),
        {"program": 4.0, "think": 0.2, "clients": 10, "operator": True},
        first=EXTENDED_FROM + 20,
    ),
)
