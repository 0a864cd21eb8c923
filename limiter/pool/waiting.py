"""Waiting for what has to be done to its end."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["uninterrupted"]


async def uninterrupted(task: asyncio.Task[Any]) -> None:
    """Waits for the end of a task, and raises a cancellation that came meanwhile after it. How it has ended is for the
    caller to ask."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if not task.cancelled():
        task.exception()
    if cancelled:
        raise asyncio.CancelledError
