"""Which tasks a step takes. Pure: a step's tasks follow from its number, so resuming needs no position of its own."""

from __future__ import annotations

import random

__all__ = ["step_tasks"]


def step_tasks(step: int, *, tasks: int, per_step: int, seed: int) -> list[int]:
    """Numbers of the tasks of step `step` (from 1): `per_step` of `tasks`, none twice.

    Each pass over the data has an order of its own; what is left at its end and makes no whole step is left out of that
    pass.
    """
    assert 1 <= per_step <= tasks
    epoch, place = divmod(step - 1, tasks // per_step)
    order = list(range(tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order[place * per_step : (place + 1) * per_step]
