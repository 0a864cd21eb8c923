"""The value of a trajectory, with the parts it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Reward"]


@dataclass(frozen=True, slots=True)
class Reward:
    """`value` is what training uses; `parts` explain it. Both are finite. A masked trajectory has none at all."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert math.isfinite(self.value)
        assert all(math.isfinite(part) for part in self.parts.values())
