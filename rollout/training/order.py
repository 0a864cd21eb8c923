"""In which order problems are taken, and with which seeds. Pure: a step's problems follow from its number, and those of
an asynchronous run from how many were taken before, so resuming needs no position in a random sequence."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

__all__ = ["play_seed", "step_tasks", "stream_task"]


def step_tasks(step: int, *, tasks: int, per_step: int, seed: int) -> list[int]:
    """Numbers of the tasks of step `step` (from 1): `per_step` of `tasks`, none twice.

    Each pass over the data has an order of its own; what is left at its end and makes no whole step is left out of that
    pass.
    """
    assert 1 <= per_step <= tasks
    epoch, place = divmod(step - 1, tasks // per_step)
    return list(_order(epoch, tasks, seed)[place * per_step : (place + 1) * per_step])


def stream_task(number: int, *, tasks: int, seed: int) -> int:
    """Which of `tasks` is the one that is taken as `number` (from 0), where they are taken one by one: each pass has an
    order of its own and leaves none out."""
    epoch, place = divmod(number, tasks)
    return _order(epoch, tasks, seed)[place]


def play_seed(seed: int | None, number: int) -> int | None:
    """Of everything that is played for step or group `number`; None stays None. Unrelated to those of other numbers:
    seeds of trajectories are counted up from it, and must not meet those of the next one."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.sha256(f"play {number} of {seed}".encode()).digest()[:8]) % 2**63


@lru_cache(maxsize=4)  # an asynchronous run asks one by one, at the end of a pass for those of two passes
def _order(epoch: int, tasks: int, seed: int) -> tuple[int, ...]:
    order = list(range(tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return tuple(order)
