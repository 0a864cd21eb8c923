"""Kubernetes quantities and the numbers that may be percentages. Pure."""

from __future__ import annotations

import math

__all__ = ["quantity", "share"]

_FACTORS = {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}  # fmt: skip


def quantity(text: str | float) -> float:
    """`512Mi`, `250m`, `2`: the number that it stands for. ValueError for anything else."""
    text = str(text)
    for unit, factor in _FACTORS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def share(value: str | int, of: int, *, up: bool) -> int:
    """An IntOrString of a rolling update: `25%` of `of`, rounded up (maxSurge) or down (maxUnavailable)."""
    if isinstance(value, int):
        return value
    exact = int(value.removesuffix("%")) * of / 100
    return math.ceil(exact) if up else math.floor(exact)
