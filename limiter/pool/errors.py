"""Why a function of a pool gave no result. What the function itself raises reaches the caller as itself."""

from __future__ import annotations

from fairbox.errors import FairboxError

__all__ = ["FunctionFailed", "LeaseLost", "PoolClosed", "PoolError", "PoolFull", "RunTimeout", "WorkerDied"]


class PoolError(FairboxError):
    """Base of what a pool raises. Waiting for the limiter raises the errors of `limiter` instead."""


class PoolClosed(PoolError):  # noqa: N818 - a fact about the pool
    """The pool is not open. The function was not started, or was ended with the pool."""


class PoolFull(PoolError):  # noqa: N818 - a fact about the pool
    """As many runs wait in the pool as may. The function was not started."""


class RunTimeout(PoolError):  # noqa: N818 - the argument's name
    """The function ran for longer than its `timeout`. A process was killed; a thread runs on, and its lease stays held
    until it ends."""


class WorkerDied(PoolError):  # noqa: N818 - a fact about the process
    """The worker process ended while it ran the function, or could not be started; the text says how. Another one
    takes its place."""


class LeaseLost(PoolError):  # noqa: N818 - a fact about the lease
    """The limiter took the lease back, or could not be reached for so long that it may: the worker was killed."""


class FunctionFailed(PoolError):  # noqa: N818 - a fact about the function
    """The function raised what can't be raised here as itself: an exception that can't be pickled or that ends
    programs (SystemExit), or its arguments or result can't be pickled or are too large. The text says which."""
