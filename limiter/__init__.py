"""Admission tier: one cluster-wide limit on code in flight, strictly first in, first out.

Ask with `LimiterClient`, run with `ExecutorSession`, serve with `python -m limiter`. Names are loaded one by one: the
clients cost gRPC.
"""

from typing import TYPE_CHECKING

from fairbox.surface import lazily

if TYPE_CHECKING:
    from limiter.client.client import LimiterClient
    from limiter.client.errors import (
        LeaseRefused,
        LimiterError,
        LimiterUnavailable,
        QueueFull,
        QueueTimeout,
        UnknownBucket,
    )
    from limiter.client.executor import ExecutorSession
    from limiter.client.lease import BindOutcome, Lease, LeaseLike, outcome_of
    from limiter.core.reasons import BindStatus, ReleaseOutcome

__all__ = [
    "BindOutcome",
    "BindStatus",
    "ExecutorSession",
    "Lease",
    "LeaseLike",
    "LeaseRefused",
    "LimiterClient",
    "LimiterError",
    "LimiterUnavailable",
    "QueueFull",
    "QueueTimeout",
    "ReleaseOutcome",
    "UnknownBucket",
    "outcome_of",
]

__getattr__ = lazily(
    __name__,
    {
        "client.client": "LimiterClient",
        "client.errors": "LeaseRefused LimiterError LimiterUnavailable QueueFull QueueTimeout UnknownBucket",
        "client.executor": "ExecutorSession",
        "client.lease": "BindOutcome Lease LeaseLike outcome_of",
        "core.reasons": "BindStatus ReleaseOutcome",
    },
)
