"""Ending things when whoever ends them may be cancelled meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_LOG = logging.getLogger("fairbox.rollout")
WITHIN_S = 180.0
"""For what should have a deadline of its own and has none: a tool of a user's that hangs must not hang the run."""
_CANCEL_S = 5.0


def cancelled_here() -> bool:
    """Says whether the task that runs now was cancelled. If not, a CancelledError comes from what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def to_its_end(work: Coroutine[Any, Any, None], *, within_s: float = WITHIN_S) -> None:
    """Awaits `work` also where this is cancelled meanwhile; the cancellation is raised afterwards. So nothing that
    cleans up is left behind as a task that nobody awaits. After `within_s` seconds it is cancelled, with a warning."""
    task = asyncio.ensure_future(work)
    deadline = asyncio.get_running_loop().time() + within_s
    cancelled = False
    while not task.done() and (left := deadline - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError:
            cancelled = True
    if not task.done():
        _LOG.warning("gave up after %g s of cleaning up: %s", within_s, getattr(work, "__qualname__", work))
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_S)
    elif not task.cancelled() and (error := task.exception()) is not None and not cancelled:
        raise error
    if cancelled:
        raise asyncio.CancelledError
