"""Rows dealt to several processes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout.training.learner.learner import plan_micro_batches, plan_rounds, split_rows

LENGTHS = st.lists(st.integers(0, 60), max_size=40)


@given(LENGTHS, st.integers(1, 5), st.integers(1, 100))
def test_every_row_is_computed_once_and_all_have_as_many_rounds(
    lengths: list[int], parts: int, max_tokens: int
) -> None:
    plans = plan_rounds(lengths, parts, max_tokens=max_tokens)
    assert len(plans) == parts
    assert len({len(plan) for plan in plans}) == 1
    rows = [row for plan in plans for micro in plan for row in micro]
    assert sorted(rows) == [row for row, length in enumerate(lengths) if length]
    for micro in (micro for plan in plans for micro in plan if len(micro) > 1):
        assert len(micro) * max(lengths[row] for row in micro) <= max_tokens
    if any(lengths):
        assert all(any(plan[number] for plan in plans) for number in range(len(plans[0])))


@given(LENGTHS, st.integers(1, 5))
def test_parts_have_like_numbers_of_tokens(lengths: list[int], parts: int) -> None:
    tokens = [sum(lengths[row] for row in rows) for rows in split_rows(lengths, parts)]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


def test_one_process_has_the_plan_of_one() -> None:
    assert plan_rounds([3, 9, 0, 4], 1, max_tokens=9) == [[[1], [3, 0]]]
    assert plan_rounds([3, 9, 0, 4], 3, max_tokens=9) == [[[1]], [[3]], [[0]]]
    assert plan_rounds([5, 1], 3, max_tokens=9) == [[[0]], [[1]], [[]]]
    assert plan_rounds([], 2, max_tokens=9) == [[], []]


def test_rows_are_padded_with_their_like() -> None:
    assert plan_micro_batches([3, 9, 2, 8, 3], max_tokens=18) == [[1, 3], [0, 4, 2]]
