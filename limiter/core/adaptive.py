"""A limit that adapts: additive increase, multiplicative decrease (AIMD).

The formula is that of Netflix concurrency-limits, `AIMDLimit`: on a drop or a timeout `limit * backoff`; otherwise,
when `in flight * 2 >= limit`, `limit + 1`; always between a floor and a cap. Two things differ. The increase is spread
over as many good ends as the limit counts, as TCP spreads it over a window, because one per end would undo each
decrease at once. And work that was granted before the last decrease does not decrease again: it tells of the same
overload.
"""

from __future__ import annotations

from limiter.core.ids import LeaseId

__all__ = ["AimdLimit"]

_FLOOR = 1
"""The lowest limit: with one token the work that ends well can still raise it."""
_BACKOFF = 0.8
"""Factor on overload: a step that a few good windows make up for, where halving would leave half of the work idle."""


class AimdLimit:
    """The limit now in force, `limit`: from 1 to `most`, where it starts."""

    __slots__ = ("_decreased_at", "_most", "_value")

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = float(most)
        self._decreased_at = LeaseId(0, 0)

    @property
    def limit(self) -> int:
        """Tokens that may be in use."""
        return int(self._value)

    def good(self, held: int) -> None:
        """Work has ended well while `held` tokens were in use, its own included."""
        if held * 2 >= self.limit:
            self._value = min(float(self._most), self._value + 1.0 / self.limit)

    def overloaded(self, lease: LeaseId, newest: LeaseId) -> None:
        """The work of `lease` met overload or a timeout; `newest` was granted last."""
        if lease > self._decreased_at:
            self._value = max(float(_FLOOR), self._value * _BACKOFF)
            self._decreased_at = newest

    def change(self, most: int) -> None:
        """From now on another cap. A limit that stood at its cap goes with the cap."""
        value = float(most) if self._value >= self._most else self._value
        self._most = most
        self._value = min(float(most), value)
