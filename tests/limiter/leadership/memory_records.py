"""A record in memory, whose store can be slow, away, or silent about what it did."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from limiter.leadership import Conflict, Record, StoreUnavailable


class MemoryRecords:
    """A `RecordStore` of one process. Set the public fields at any time."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = record
        self.delay = 0.0
        """Seconds before and again after each call reaches the record."""
        self.away = False
        """Calls fail, and nothing is written."""
        self.silent = False
        """Calls are done, and then fail."""
        self.reads = 0
        self.writes = 0
        """Writes that were done."""

    async def read(self) -> Record | None:
        """The record."""
        await self._travel(reached=False)
        self.reads += 1
        found = self.record
        await self._travel(reached=True)
        return found

    async def write(self, record: Record, expected: str | None) -> Record:
        """Replaces the record."""
        await self._travel(reached=False)
        if expected != (self.record.version if self.record is not None else None):
            raise Conflict
        self.writes += 1
        written = self.record = replace(record, version=f"v{self.writes}")
        await self._travel(reached=True)
        return written

    async def close(self) -> None:
        """Nothing is open."""

    async def _travel(self, *, reached: bool) -> None:
        if self.away and not reached:
            raise StoreUnavailable("the store is away")
        await asyncio.sleep(self.delay)
        if self.silent and reached:
            raise StoreUnavailable("the store is silent")
