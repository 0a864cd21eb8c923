"""Ends of blocks: clean-up that a cancellation can't interrupt, and groups of tasks that let a block's error out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def leave(tasks: asyncio.TaskGroup, error: BaseException | None) -> None:
    """Leaves a group that was entered for a block, which `error` ended: as the group's own block, but the error goes on
    as it is, and not in a group of one. What tasks raised beside it is logged."""
    try:
        await tasks.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
    except BaseExceptionGroup as group:
        if error not in group.exceptions:
            raise
        for other in group.exceptions:
            if other is not error:
                _log.error("a task failed as well", exc_info=other)


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
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
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result
