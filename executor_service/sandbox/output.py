"""What is kept of a stream: the first bytes up to a limit; the rest is counted and thrown away.

Pure. A program that floods is not held up, and not let go on for ever: `flooded` says when it is to be killed.
"""

from __future__ import annotations

from executor_service.model import Output

__all__ = ["FLOOD_FACTOR", "FLOOD_MINIMUM", "Capture"]

FLOOD_FACTOR = 64
"""A stream may carry this many times the output limit before its program is killed."""
FLOOD_MINIMUM = 16 << 20
"""Bytes that a stream may always carry: a small limit shall cut a talkative program's output, not kill it."""


class Capture:
    """One stream of one program."""

    def __init__(self, limit: int, before: Output | None = None) -> None:
        """`before`: what was captured with another limit, to be gone on with."""
        self._limit = limit
        self._flood = max(limit * FLOOD_FACTOR, FLOOD_MINIMUM)
        self._data = bytearray(before.data[:limit] if before else b"")
        self._total = before.total_bytes if before else 0
        self._cut = before is not None and before.truncated

    def feed(self, data: bytes) -> bytes:
        """Takes in what was read, and returns what is kept of it."""
        self._total += len(data)
        kept = data[: max(0, self._limit - len(self._data))] if not self._cut else b""
        self._data += kept
        return kept

    @property
    def flooded(self) -> bool:
        return self._total > self._flood

    def output(self) -> Output:
        return Output(bytes(self._data), self._total, truncated=self._total > len(self._data))
