"""In which order problems are taken, and with which seeds. Pure: a problem follows from how many were taken before, so
resuming needs no position in a random sequence."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

__all__ = ["play_seed", "stream_task"]


def stream_task(number: int, *, tasks: int, seed: int) -> int:
    """Which of `tasks` is taken as `number` (from 0): each pass has an order of its own and leaves none out."""
    epoch, place = divmod(number, tasks)
    return _order(epoch, tasks, seed)[place]


def play_seed(seed: int | None, number: int) -> int | None:
    """Seed of everything that is played for the group or evaluation `number`; None stays None. It is unrelated to those
    of other numbers: seeds of trajectories are counted up from it, and must not meet those of the next one."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"play {number} of {seed}".encode()).digest()[:8]) % 2**63


@lru_cache(maxsize=4)  # a run asks one by one, at the end of a pass for those of two passes
def _order(epoch: int, tasks: int, seed: int) -> tuple[int, ...]:
    order = list(range(tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return tuple(order)
