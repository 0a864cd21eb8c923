"""Which rows are computed together. Pure: lengths in, row numbers out."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["plan_micro_batches"]


def plan_micro_batches(lengths: Sequence[int], *, max_tokens: int, packed: bool) -> list[list[int]]:
    """Row numbers of each micro-batch: every row that has a length above 0 is in exactly one, longest first.

    A micro-batch costs the sum of its lengths where rows are packed one behind the other, and its size times its
    longest row where they are padded; the cost is at most `max_tokens`, except for a row that alone is longer.
    """
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    costs: list[int] = []
    for row in order:
        # First fit, decreasing: within 11/9 of the fewest batches. Padded ones are filled in order, so that rows of
        # like length meet.
        for number in range(len(batches)) if packed else range(len(batches) - 1, len(batches)):
            more = lengths[row] if packed else lengths[batches[number][0]] if number >= 0 else 0
            if number >= 0 and costs[number] + more <= max_tokens:
                batches[number].append(row)
                costs[number] += more
                break
        else:
            batches.append([row])
            costs.append(lengths[row])
    return batches
