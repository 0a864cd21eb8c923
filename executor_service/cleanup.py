"""Clean-up that a cancellation can't interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["to_the_end"]


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` to its end, whatever happens to the caller; a cancellation is raised again afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except BaseException:  # noqa: S110 - raised below, by the task itself
            pass
    task.result()
    if cancelled:
        raise asyncio.CancelledError
