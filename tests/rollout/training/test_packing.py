"""Micro-batches: every row once, within the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout.training.packing import plan_micro_batches


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(1, 60), st.booleans())
def test_every_row_is_in_one_micro_batch_within_the_bound(lengths: list[int], most: int, packed: bool) -> None:
    batches = plan_micro_batches(lengths, max_tokens=most, packed=packed)
    assert sorted(row for rows in batches for row in rows) == [row for row, length in enumerate(lengths) if length]
    for rows in batches:
        sizes = [lengths[row] for row in rows]
        cost = sum(sizes) if packed else max(sizes) * len(sizes)
        assert cost <= most or len(rows) == 1


def test_rows_are_packed_where_they_fit_and_padded_with_their_like() -> None:
    assert plan_micro_batches([3, 9, 0, 7, 1], max_tokens=10, packed=True) == [[1, 4], [3, 0]]
    assert plan_micro_batches([3, 9, 2, 8, 3], max_tokens=18, packed=False) == [[1, 3], [0, 4, 2]]
