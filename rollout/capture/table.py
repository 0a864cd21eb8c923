"""Which trajectories are held, and how many requests run: bounds and idle times. Pure; time is an argument.

Invariants: never more trajectories than `max_trajectories` and never more requests in flight than `max_concurrent`; a
trajectory with a request in flight is never given up for being idle; what is removed is gone, and a request that ends
afterwards does not bring it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from executor_service import Cause
from fairbox.errors import FairboxError
from rollout.capture.recorder import Recorder

__all__ = ["BoundReachedError", "Entry", "TrajectoryTable", "UnknownTrajectoryError"]


class BoundReachedError(FairboxError):
    """This server holds or runs as much as it may; the text says which bound. Ask again later."""


class UnknownTrajectoryError(FairboxError):
    """No trajectory of this id is held: none was asked for, or it was deleted or given up for being idle."""


@dataclass(eq=False, slots=True)
class Entry:
    """One trajectory that is held."""

    trajectory_id: str
    recorder: Recorder
    used_at: float
    running: int = 0
    removed: bool = False
    reward: float | None = None
    error: str | None = None
    """What failed in the service since the last turn; None when nothing did."""
    failures: int = 0
    """Requests that failed by the service, in all."""

    def failed(self, error: str) -> None:
        """A request failed by the service."""
        self.failures += 1
        self.error = error

    @property
    def cause(self) -> Cause:
        """INFRA when the service failed and no turn followed: then the agent may have given up for that reason."""
        return Cause.POLICY if self.error is None else Cause.INFRA


class TrajectoryTable:
    """`make` makes the recorder of a new trajectory. Bounds are at least 1; `idle_ttl_s` is in seconds."""

    def __init__(
        self, make: Callable[[], Recorder], *, max_trajectories: int, max_concurrent: int, idle_ttl_s: float
    ) -> None:
        self._make = make
        self._max_trajectories = max_trajectories
        self._max_concurrent = max_concurrent
        self._idle_ttl_s = idle_ttl_s
        self._entries: dict[str, Entry] = {}
        self.running = 0
        """Requests in flight."""
        self.refused = 0
        self.expired = 0
        self.deleted = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, trajectory_id: str) -> Entry | None:
        """None when it is not held."""
        return self._entries.get(trajectory_id)

    def entries(self) -> tuple[Entry, ...]:
        """All that are held."""
        return tuple(self._entries.values())

    def begin(self, trajectory_id: str, now: float) -> Entry:
        """A request starts; its trajectory is made as needed. Give the entry to `end`. Raises BoundReachedError."""
        entry = self._entries.get(trajectory_id)
        if self.running >= self._max_concurrent:
            self.refused += 1
            raise BoundReachedError(f"overloaded: {self.running} requests are in flight, which is max_concurrent")
        if entry is None:
            if len(self._entries) >= self._max_trajectories:
                self.expire(now)
            if len(self._entries) >= self._max_trajectories:
                self.refused += 1
                held = f"{len(self._entries)} trajectories are held, which is max_trajectories"
                raise BoundReachedError(f"overloaded: {held}; DELETE those that are done")
            entry = self._entries[trajectory_id] = Entry(trajectory_id, self._make(), now)
        entry.running += 1
        entry.used_at = now
        self.running += 1
        return entry

    def end(self, entry: Entry, now: float) -> None:
        """A request ended, however it did. A trajectory that holds nothing then is not kept."""
        entry.running -= 1
        entry.used_at = now
        self.running -= 1
        if not entry.running and not entry.recorder.turns and entry.error is None and not entry.removed:
            self._remove(entry)

    def delete(self, trajectory_id: str) -> Entry | None:
        """Removes one; None when it was not held."""
        entry = self._entries.get(trajectory_id)
        if entry is not None:
            self._remove(entry)
            self.deleted += 1
        return entry

    def expire(self, now: float) -> tuple[Entry, ...]:
        """Removes those that nobody used for `idle_ttl_s`."""
        idle = [e for e in self._entries.values() if not e.running and now - e.used_at >= self._idle_ttl_s]
        for entry in idle:
            self._remove(entry)
        self.expired += len(idle)
        return tuple(idle)

    def _remove(self, entry: Entry) -> None:
        entry.removed = True
        del self._entries[entry.trajectory_id]
