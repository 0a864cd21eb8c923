"""The table of request ids: what makes a call safe to repeat. Pure.

new -> RUNNING -> DONE (result kept) -> GONE (result dropped for its size, the id still known) -> forgotten by age.

Invariants: an id whose program may have run is never given to a second run while the table knows it; running entries
are never dropped; what is kept is bounded by count, by bytes and by age. A request that failed before its program
started is forgotten at once, so that its repetition runs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from executor_service.errors import RunLost
from fairbox.errors import FieldError, FieldErrors

Run = TypeVar("Run")
Result = TypeVar("Result")

_ENTRY_BYTES = 512
"""Bytes that an entry costs beside its result; counted, so that many small results are bounded too."""


@dataclass(slots=True)
class _Entry(Generic[Run, Result]):
    fingerprint: bytes
    run: Run | None
    result: Result | None = None
    size: int = _ENTRY_BYTES
    ended_at: float = 0.0


class DedupTable(Generic[Run, Result]):
    """`max_age_s` counts from the end of a run. A request with an empty id is new each time, and not in the table."""

    def __init__(self, *, max_ids: int, max_bytes: int, max_age_s: float) -> None:
        self._max_ids = max_ids
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._running: dict[str, _Entry[Run, Result]] = {}
        self._ended: OrderedDict[str, _Entry[Run, Result]] = OrderedDict()
        self._kept: OrderedDict[str, _Entry[Run, Result]] = OrderedDict()
        self._bytes = 0
        self.deduplicated_total = 0

    def look_up(self, request_id: str, fingerprint: bytes, now: float) -> tuple[Run | None, Result | None]:
        """The run in flight with this id, or the result of one that has ended. Raises FieldErrors for an id of
        another request, and RunLost for a result that is no longer kept."""
        self.expire(now)
        entry = self._running.get(request_id) or self._ended.get(request_id)
        if entry is None:
            return None, None
        if entry.fingerprint != fingerprint:
            reused = "was used for another request, must be new or repeat the same request"
            raise FieldErrors([FieldError("request_id", reused)])
        self.deduplicated_total += 1
        if entry.run is None and entry.result is None:
            lost = "the program may have run, and its result is no longer kept"
            raise RunLost(f"{lost}; a new attempt takes a new request_id")
        return entry.run, entry.result

    def knows(self, request_id: str) -> bool:
        """Says whether the id is in the table. Counts nothing."""
        return request_id in self._running or request_id in self._ended

    def begin(self, request_id: str, fingerprint: bytes, run: Run) -> None:
        """Records that `run` is in flight. The id must be new."""
        assert not self.knows(request_id)
        if request_id:
            self._running[request_id] = _Entry(fingerprint, run)

    def end(self, request_id: str, result: Result, size: int, now: float) -> None:
        """The run in flight has this result, of `size` bytes."""
        entry = self._running.pop(request_id, None)
        if entry is not None:
            self.restore(request_id, entry.fingerprint, result, size, now)
            self.expire(now)

    def restore(self, request_id: str, fingerprint: bytes, result: Result | None, size: int, ended_at: float) -> None:
        """An id that the table lacks is of a run that ended then; those of earlier lives come first, the oldest before
        all others. Without a result its repetition is RunLost."""
        entry: _Entry[Run, Result] = _Entry(fingerprint, None, result, size + _ENTRY_BYTES, ended_at)
        self._ended[request_id] = entry
        if result is not None:
            self._kept[request_id] = entry
            self._bytes += entry.size
        while self._bytes > self._max_bytes:
            self._drop_result(next(iter(self._kept)))
        while len(self._ended) > self._max_ids:
            self._forget(next(iter(self._ended)))

    def abandon(self, request_id: str) -> None:
        """The run in flight ended before its program could have started: the id is free again."""
        self._running.pop(request_id, None)

    def expire(self, now: float) -> None:
        """Forgets what is older than the window."""
        while self._ended:
            request_id, entry = next(iter(self._ended.items()))
            if now - entry.ended_at < self._max_age_s:
                return
            self._forget(request_id)

    def statistics(self) -> dict[str, int]:
        """Ids in flight, ids known that ended, and bytes kept for them."""
        return {"running": len(self._running), "ended": len(self._ended), "bytes": self._bytes}

    def _drop_result(self, request_id: str) -> None:
        entry = self._kept.pop(request_id)
        self._bytes -= entry.size
        entry.result = None

    def _forget(self, request_id: str) -> None:
        if request_id in self._kept:
            self._drop_result(request_id)
        del self._ended[request_id]
