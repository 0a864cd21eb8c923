"""Shares of tenants in what a server has a fixed number of: places in its queue, and sessions.

The share of a tenant is its weight's part of the weights of all that are present. What others leave free is borrowed
without asking, and is given back as soon as a tenant below its share wants it: whoever stands highest above its share
gives way, one unit at a time.

Invariants: a tenant that uses less than its share, rounded down, always gets one unit more; no unit goes back and
forth. It keeps no counts, and does not know what a unit is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

Weights = Mapping[str, float]
"""By tenant; 1 for one that is not named."""


def share_of(tenant: str, used: Mapping[str, int], most: int, weights: Weights) -> int:
    """Units of `most` that are the tenant's among those that use some, and itself."""
    total = sum(weights.get(each, 1.0) for each, number in used.items() if number and each != tenant)
    weight = weights.get(tenant, 1.0)
    return math.floor(most * weight / (total + weight))


def lender(tenant: str, used: Mapping[str, int], weights: Weights) -> str | None:
    """Returns the tenant that gives a unit up, where none is free, so that `tenant` has one more; None where nobody
    stands higher than `tenant` then would."""
    other = max(used, key=lambda each: used[each] / weights.get(each, 1.0), default=tenant)
    wanted = (used.get(tenant, 0) + 1) / weights.get(tenant, 1.0)
    return other if used.get(other, 0) / weights.get(other, 1.0) > wanted else None


def bound(tenant: str, used: Mapping[str, int], most: int, weights: Weights) -> str:
    """Ends the message of a refusal: what the tenant has of what is exhausted, and what it may have."""
    return f"{used.get(tenant, 0)} of them this tenant's, whose share is {share_of(tenant, used, most, weights)}"
