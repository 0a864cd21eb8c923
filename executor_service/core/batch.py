"""Which programs of a batch may start now. Pure.

Invariants: programs start in their order; no more than `max_parallel` are out at once, where a program counts until
its result has been handed over, so that results never pile up; after a failure with `stop_on_failure` none starts, and
those that never started are known with the cause of the first failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.model import Cause

__all__ = ["Batch", "Stopped"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why no more programs start."""

    index: int
    """The program that failed first."""
    cause: Cause
    """Who could have caused that."""


class Batch:
    def __init__(self, count: int, *, max_parallel: int, stop_on_failure: bool) -> None:
        assert count > 0
        assert max_parallel > 0
        self._count = count
        self._max_parallel = max_parallel
        self._stop_on_failure = stop_on_failure
        self._next = 0
        self._out: set[int] = set()
        self.stopped: Stopped | None = None

    def start(self) -> list[int]:
        """Indexes of the programs that start now."""
        started = []
        while self.stopped is None and self._next < self._count and len(self._out) < self._max_parallel:
            started.append(self._next)
            self._out.add(self._next)
            self._next += 1
        return started

    def failed(self, index: int, cause: Cause) -> None:
        """A program that is out did not finish with exit code 0, or could not be run."""
        assert index in self._out
        if self._stop_on_failure and self.stopped is None:
            self.stopped = Stopped(index, cause)

    def handed_over(self, index: int) -> list[int]:
        """The result of a program is with the caller. Returns the indexes of those that start in its place."""
        self._out.remove(index)
        return self.start()

    def never_started(self) -> range:
        """Indexes of the programs that will not start."""
        return range(self._next, self._count) if self.stopped is not None else range(0)
