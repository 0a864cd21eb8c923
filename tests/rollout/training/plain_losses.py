"""Losses written from their papers, one token at a time, in float64. They share nothing with what is tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Row = Sequence[tuple[Any, float, float]]
"""Row of counted tokens: the logprob of each (a scalar tensor), its old logprob, its advantage."""


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _clip(value: Any, low: float, high: float) -> Any:
    return low if _number(value) < low else high if _number(value) > high else value


def _smaller(left: Any, right: Any) -> Any:
    return left if _number(left) <= _number(right) else right


def ppo(row: Row, low: float, high: float, c: float) -> list[Any]:
    losses = []
    for new, old, a in row:
        r = (new - old).exp()
        losses.append(-_smaller(r * a, _clip(r, 1 - low, 1 + high) * a))
    return losses


def dual_clip(row: Row, low: float, high: float, c: float) -> list[Any]:
    losses = []
    for (_, _, a), loss in zip(row, ppo(row, low, high, c), strict=True):
        losses.append(_smaller(loss, -c * a) if a < 0 else loss)
    return losses


def gspo(row: Row, low: float, high: float, c: float) -> list[Any]:
    """The sequence form of the paper, whose mean over tokens has GSPO-token's gradient where advantages are equal."""
    if not row:
        return []
    s = (sum(new - old for new, old, _ in row) / len(row)).exp()
    return [-_smaller(s * a, _clip(s, 1 - low, 1 + high) * a) for _, _, a in row]


def cispo(row: Row, low: float, high: float, c: float) -> list[Any]:
    return [-_clip(math.exp(_number(new) - old), 1 - low, 1 + high) * a * new for new, old, a in row]


PLAIN: dict[str, Callable[[Row, float, float, float], list[Any]]] = {
    "ppo": ppo,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "cispo": cispo,
}


def aggregate(rows: Sequence[list[Any]], groups: Sequence[int], kind: str, norm: int) -> Any:
    """One number from the losses of the counted tokens of each row."""
    full = [(losses, group) for losses, group in zip(rows, groups, strict=True) if losses]
    if not full:
        return 0.0
    if kind == "token_mean":
        return sum(sum(losses) for losses, _ in full) / sum(len(losses) for losses, _ in full)
    if kind == "sequence_mean":
        return sum(sum(losses) / len(losses) for losses, _ in full) / len(full)
    if kind == "prompt_mean":
        names = {group for _, group in full}
        each = [[loss for losses, group in full if group == name for loss in losses] for name in names]
        return sum(sum(losses) / len(losses) for losses in each) / len(each)
    total = sum(sum(losses) for losses, _ in full) / len(full)
    return total / norm if kind == "seq_mean_token_sum_norm" else total
