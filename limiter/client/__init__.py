"""The limiter's clients: `LimiterClient` for those who ask, `ExecutorSession` for those who run."""

from __future__ import annotations

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

__all__ = [
    "BindOutcome",
    "ExecutorSession",
    "Lease",
    "LeaseLike",
    "LeaseRefused",
    "LimiterClient",
    "LimiterError",
    "LimiterUnavailable",
    "QueueFull",
    "QueueTimeout",
    "UnknownBucket",
    "outcome_of",
]
