"""A record in memory, whose store can be slow or away."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from limiter.leadership import Conflict, Record, StoreUnavailable
from limiter.leadership.election import RosterRefused


class MemoryRecords:
    """A `RecordStore` of one process. Set the public fields at any time."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.delay = 0.0
        """Seconds before and again after each call reaches the record."""
        self.away = False
        """Calls fail, and nothing is written."""
        self.room = 1_000
        """Most members of a roster."""
        self.writes = 0
        """Writes that were done."""

    async def read(self) -> Record | None:
        """The record."""
        await self._arrive()
        found = self.record
        await asyncio.sleep(self.delay)
        return found

    async def write(self, record: Record, expected: str | None) -> Record:
        """Replaces the record."""
        await self._arrive()
        if expected != (self.record.version if self.record is not None else None):
            raise Conflict
        if len(record.roster or ()) > self.room:
            raise RosterRefused("there is no room")
        self.writes += 1
        written = self.record = replace(record, version=f"v{self.writes}")
        await asyncio.sleep(self.delay)
        return written

    async def close(self) -> None:
        """Nothing is open."""

    async def _arrive(self) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")
        await asyncio.sleep(self.delay)
