"""Which rows each of several processes computes, in rounds that all of them go through together.

Pure: lengths in, row numbers out. Every process has a part in every collective of a sharded model, so one that has
fewer micro-batches than others gets empty ones. Invariants: each row that has a length above 0 is in exactly one
micro-batch of one process; every process has the same number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["plan_micro_batches", "plan_rounds", "split_rows"]


def plan_micro_batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Row numbers of each micro-batch: every row that has a length above 0 is in exactly one, longest first, so that
    rows of like length meet. A micro-batch costs its size times its longest row; the cost is at most `max_tokens`,
    except for a row that alone is longer.
    """
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    for row in order:
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def split_rows(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Row numbers of each part: the longest row first, each to the part with the fewest tokens so far, which leaves no
    part more than a third above the best split (Graham, 1969)."""
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lambda row: (-lengths[row], row))
    rows: list[list[int]] = [[] for _ in range(parts)]
    tokens = [0] * parts
    for row in order:
        part = tokens.index(min(tokens))
        rows[part].append(row)
        tokens[part] += lengths[row]
    return rows


def plan_rounds(lengths: Sequence[int], parts: int, *, max_tokens: int) -> list[list[list[int]]]:
    """Of each part its micro-batches, by `plan_micro_batches`; those that are short of some get empty ones."""
    plans = []
    for rows in split_rows(lengths, parts):
        mine = set(rows)
        own = [length if row in mine else 0 for row, length in enumerate(lengths)]
        plans.append(plan_micro_batches(own, max_tokens=max_tokens))
    rounds = max(len(plan) for plan in plans)
    return [plan + [[] for _ in range(rounds - len(plan))] for plan in plans]
