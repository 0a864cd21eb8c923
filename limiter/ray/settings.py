"""What a limiter's actor is made with, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limiter.core import BucketLimits, Timing

__all__ = ["DEFAULT_NAME", "NAMESPACE", "RaySettings", "bucket_limits"]

DEFAULT_NAME = "limiter"
NAMESPACE = "fairbox"
"""Ray's namespace of the actor: names are unique within it, and drivers of other namespaces find it there."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Settings of the actor. Durations are in seconds."""

    buckets: tuple[BucketLimits, ...]
    timing: Timing = field(default_factory=Timing)
    poll: float = 2.0
    """How long a poll of a stream is held when there is nothing to say: with 100 idle clients the actor then answers 50
    polls a second, some 5 % of a core."""
    silence: float = 2.0
    """A stream that has not been polled for so long has lost its client. Ray does not tell an actor that a caller died,
    so a killed client is noticed `silence` to `poll + silence` after its death, and its session ends a grace later. A
    client whose loop stands still for longer reconnects, and keeps its places in the queue by its tickets."""
    lease: float = 5.0
    """An actor leads for so long after it has last seen that no later one exists; a later one on another machine waits
    as long. Enough for a control service that is busy, and far below the time after which Ray gives a machine up."""
    max_streams: int = 4_000
    """Most streams at once. Each needs up to two of the actor's concurrent calls."""

    @property
    def max_concurrency(self) -> int:
        """Concurrent calls of the actor: those of the streams, and room for questions beside them."""
        return 2 * self.max_streams + 1_000


def bucket_limits(buckets: Mapping[str, int | BucketLimits]) -> tuple[BucketLimits, ...]:
    """Limits by name; a number is `max_in_flight` with everything else at its default."""
    return tuple(
        BucketLimits(name, max_in_flight=limits) if isinstance(limits, int) else limits
        for name, limits in buckets.items()
    )
