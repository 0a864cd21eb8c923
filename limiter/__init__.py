"""Admission tier: one cluster-wide limit on code in flight, strictly first in, first out.

Ask with `LimiterClient`, run with `ExecutorSession`, serve with `python -m limiter`.
"""

from __future__ import annotations

import fairbox.net.service_process  # noqa: F401 - before gRPC and other packages are loaded

# isort: split
from limiter.client import (
    BindOutcome,
    ExecutorSession,
    Lease,
    LeaseLike,
    LeaseRefused,
    LimiterClient,
    LimiterError,
    LimiterUnavailable,
    QueueFull,
    QueueTimeout,
    UnknownBucket,
    outcome_of,
)
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
