"""Counts by size, as Prometheus takes them: cumulative buckets and a sum. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["BYTES", "SECONDS", "Histogram"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds for what takes from a millisecond (a warm sandbox) to minutes (a queue, a limit)."""
BYTES = tuple(float(1 << power) for power in range(24, 35))
"""Bounds for memory of programs: 16 MiB (an interpreter) to 16 GiB (the usual maximum)."""


class Histogram:
    """`bounds` are the upper ends of the buckets, ascending; values beyond the last one have a bucket of their own."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """(bound, values up to it), the last bound `+Inf`, as `HistogramMetricFamily` takes them."""
        bounds = [*(f"{bound:g}" if bound < 1e6 else str(bound) for bound in self._bounds), "+Inf"]
        return [(bound, float(count)) for bound, count in zip(bounds, accumulate(self._counts), strict=True)]
