"""Runs functions in threads or processes of this program, each under a lease of the limiter.

`ExecutionPool` in asyncio, `BlockingExecutionPool` elsewhere.
"""

from __future__ import annotations

from limiter.pool.blocking import BlockingExecutionPool
from limiter.pool.errors import FunctionFailed, LeaseLost, PoolClosed, PoolError, PoolFull, RunTimeout, WorkerDied
from limiter.pool.pool import ExecutionPool, ExecutorHost
from limiter.pool.statistics import PoolStatistics

__all__ = [
    "BlockingExecutionPool",
    "ExecutionPool",
    "ExecutorHost",
    "FunctionFailed",
    "LeaseLost",
    "PoolClosed",
    "PoolError",
    "PoolFull",
    "PoolStatistics",
    "RunTimeout",
    "WorkerDied",
]
