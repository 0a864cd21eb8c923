"""Setting of one history: its participants, its durations, and the way that limiters come to lead.

Drawn from a seed: histories with executors, whose programs run under bound leases; with holds beside them; and with
holds alone. In each, some tasks may use the unary calls.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from limiter.config import LEADERS as ALL_LEADERS

LEADERS = tuple(sorted({"file", "none"} & set(ALL_LEADERS)))
"""Ways in which limiters come to lead: odd seeds without a roster, even ones with it."""


@dataclass(frozen=True, slots=True)
class World:
    """Times are in seconds."""

    leader: str
    clients: int = 3
    executors: int = 2
    tasks: int = 8
    """Number of tasks of each client."""
    unary: int = 0
    """Number of those tasks that use the unary calls."""
    holds: bool = False
    """True if some leases are held without an executor; without executors, all are."""
    disk: bool = False
    """True if the leader's state is on a small disk of its own."""
    ttl_s: float = 3.0
    """Lifetime of an executor's session without a heartbeat: short, so that a run of seconds sees many of them end."""
    queue_s: float = 20.0
    """Longest wait of most requests."""
    long_s: tuple[float, float] = (1.0, 10.0)
    """Programs of the first tasks: most outlive an executor's session that is not kept up."""
    short_s: float = 0.03
    """Mean of the others."""


def draw(seed: int) -> World:
    """A small world for a short history."""
    rng = random.Random(f"world {seed}")
    leader = LEADERS[seed % len(LEADERS)]
    executors = rng.choice([0, 0, 1, 2])
    return World(
        leader,
        clients=rng.choice([2, 3]),
        executors=executors,
        tasks=4,
        unary=rng.choice([0, 1, 2]),
        holds=not executors or rng.random() < 0.5,
        disk=leader == "file" and rng.random() < 0.5,
        ttl_s=1.5,
        queue_s=6.0,
        long_s=(0.5, 5.0),
        short_s=0.1,
    )
