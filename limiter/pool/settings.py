"""What a pool is made with, checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fairbox.errors import ConfigError, FieldError, FieldErrors
from limiter.pool.message import can_pickle_functions

__all__ = ["MAX_MESSAGE_BYTES", "PoolSettings", "WorkerKind", "check_times"]

_MAX_WORKERS = 10_000
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""By default: far above results of ordinary functions, and little enough that a few fit into memory."""


class WorkerKind(StrEnum):
    """What a function runs in."""

    THREAD = "thread"
    """A thread of this process. Cheap; can't be killed."""
    PROCESS = "process"
    """A process that runs one function after the other, and is killed to end one."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """As in `ExecutionPool`."""

    num_workers: int
    kind: str
    bucket: str
    max_queued: int
    max_message_bytes: int
    close_timeout: float

    def check(self) -> None:
        """Raises FieldErrors for bad values, ConfigError for processes without the extra `pool`."""
        errors = []
        if not 1 <= self.num_workers <= _MAX_WORKERS:
            errors.append(FieldError("num_workers", f"is {self.num_workers}, must be from 1 to {_MAX_WORKERS}"))
        if self.kind not in list(WorkerKind):
            errors.append(FieldError("kind", f"is {self.kind!r}, must be one of {', '.join(WorkerKind)}"))
        if not self.bucket:
            errors.append(FieldError("bucket", "is empty, must be the name of a bucket"))
        if self.max_queued < 0:
            errors.append(FieldError("max_queued", f"is {self.max_queued}, must be at least 0"))
        if self.max_message_bytes < 1:
            errors.append(FieldError("max_message_bytes", f"is {self.max_message_bytes}, must be at least 1"))
        if not self.close_timeout >= 0:
            errors.append(FieldError("close_timeout", f"is {self.close_timeout}, must be at least 0"))
        if errors:
            raise FieldErrors(errors)
        if self.kind == WorkerKind.PROCESS and not can_pickle_functions():
            raise ConfigError("kind is process, which needs the extra `pool`: pip install 'fairbox[pool]'")


def check_times(timeout: float | None, queue_timeout: float) -> None:
    """Raises FieldErrors unless both can be waited for."""
    errors = [
        FieldError(name, f"is {value}, must be above 0 seconds")
        for name, value in (("timeout", timeout), ("queue_timeout", queue_timeout))
        if value is not None and not value > 0
    ]
    if errors:
        raise FieldErrors(errors)
