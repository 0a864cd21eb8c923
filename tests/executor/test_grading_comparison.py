"""Comparison of outputs: what counts as the same, and that nothing a candidate sends makes it slow or raise."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.grading.apart import ComparedAnswer, finding_of
from executor_service.grading.comparison import TOLERANCE, same_text, same_value
from executor_service.grading.model import Comparison, Verdict
from executor_service.grading.values import parse
from executor_service.guest.serve.values import encode
from executor_service.model import Cause, ExecutionResult, Outcome

EXACT, WHITESPACE, FLOAT = Comparison.EXACT, Comparison.WHITESPACE, Comparison.FLOAT


@pytest.mark.parametrize(
    ("expected", "actual", "first"),
    [
        (b"a\nb\n", b"a\nb\n", EXACT),
        (b"a\nb\n", b"a\nb", WHITESPACE),
        (b"a\nb", b"a  \r\nb\t\n\n \n", WHITESPACE),
        (b"0.3 x", b"0.30000000000000004 x\n", FLOAT),
        (b"1e9", b"1000000000.5", FLOAT),
        (b"0", b"-0.0000005", FLOAT),
        (b"a\nb", b"a b", None),
        (b"a\nb", b"\na\nb", None),
        (b"a b", b"a  b", None),
        (b"a", b" a", None),
        (b"1000000007", b"1000000008", None),
        (b"0.3", b"0.31", None),
        (b"1", b"1_0", None),
        (b"nan", b"1", None),
        (b"1", b"nan", None),
        (b"1e400", b"2e400", None),
        (b"5", b"inf", None),
        (b"", b"0", None),
        ("é".encode(), "e\u0301".encode(), None),
    ],
)
def test_texts_are_the_same_from_a_comparison_on(expected: bytes, actual: bytes, first: Comparison | None) -> None:
    order = [EXACT, WHITESPACE, FLOAT]
    same = [same_text(expected, actual, comparison) for comparison in order]
    assert same == ([False] * 3 if first is None else [order.index(each) >= order.index(first) for each in order])


@given(st.binary(), st.binary(), st.sampled_from(Comparison))
def test_any_output_can_be_compared(expected: bytes, actual: bytes, comparison: Comparison) -> None:
    assert same_text(expected, expected, comparison)
    assert same_text(expected, actual, comparison) == same_text(actual, expected, comparison)


texts = st.text("a \n").map(str.encode)


@given(texts, texts, st.sampled_from(Comparison))
def test_a_text_is_right_at_sight_only_where_it_is_right(expected: bytes, actual: bytes, how: Comparison) -> None:
    answer = ComparedAnswer(expected, actual, how, TOLERANCE)
    assert answer.at_sight() in (None, answer.judge())


@pytest.mark.parametrize("outcome", [Outcome.MEMORY_LIMIT, Outcome.CPU_LIMIT, Outcome.NONZERO_EXIT])
def test_an_answer_that_is_too_much_to_compare_is_wrong(outcome: Outcome) -> None:
    found = finding_of(ExecutionResult(outcome, Cause.POLICY, message="It took too much."))
    assert (found.verdict, found.cause) == (Verdict.WRONG_ANSWER, Cause.POLICY)
    assert "It took too much." in found.message


def value(expected: Any, actual: Any, comparison: Comparison = EXACT, **more: Any) -> bool:
    return same_value(parse(encode(expected)), parse(encode(actual)), comparison, **more)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False, max_magnitude=3)
    | st.text(max_size=2)
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(scalars, max_size=3)
        | st.dictionaries(scalars, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain, plain)
def test_a_value_is_right_at_sight_only_where_it_is_right(expected: Any, actual: Any) -> None:
    answer = ComparedAnswer(encode(expected), encode([actual, [], ""]), EXACT, TOLERANCE, is_value=True)
    found = answer.at_sight()
    assert found == (answer.judge() if encode(expected) == encode(actual) else None)


@given(plain, plain)
def test_exact_is_what_python_says(expected: Any, actual: Any) -> None:
    assert value(expected, actual) == (expected == actual)


@pytest.mark.parametrize(
    ("expected", "actual", "comparison", "same"),
    [
        (float("nan"), float("nan"), EXACT, True),
        (float("nan"), 1, EXACT, False),
        (1, True, EXACT, True),
        (10**40, 10**40, EXACT, True),
        (0.3, 0.1 + 0.2, EXACT, False),
        (0.3, 0.1 + 0.2, FLOAT, True),
        ([0.3, {"a": (1.0,)}], [0.1 + 0.2, {"a": (1.0000001,)}], FLOAT, True),
        (10**9, 10**9 + 1, FLOAT, False),
        (1.5, 10**400, FLOAT, False),
        (float("inf"), 1e308, FLOAT, False),
        ({0.3, 2.0}, {0.1 + 0.2, 2.0}, FLOAT, True),
        ("a \n", "a", EXACT, False),
        ("a \n", "a", WHITESPACE, True),
        ("x 0.3", "x 0.30000001", FLOAT, True),
        ("3", 3, FLOAT, False),
        ([1], (1,), EXACT, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, EXACT, True),
        ([1, 2], [1, 2, 3], EXACT, False),
        (1 + 0j, 1, EXACT, True),
        (1 + 2j, 1 + 2j, EXACT, True),
        (1 + 2j, 1 + 2.0000001j, EXACT, False),
        (1 + 2j, 1 + 2.0000001j, FLOAT, True),
        (1 + 1e-9j, 1, FLOAT, True),
        (1 + 2j, 1 - 2j, FLOAT, False),
        ({1j, 2}, {2, 1j}, EXACT, True),
        (complex("nan"), complex("nan"), EXACT, True),
        ([1, 2], numpy.array([1, 2]), EXACT, True),
        ([[1.0, 2.0]], numpy.array([[1, 2]]), EXACT, True),
        (numpy.array([0.3]), [0.1 + 0.2], FLOAT, True),
        ([1, 2], numpy.array([1, 3]), EXACT, False),
        ((1, 2), numpy.array([1, 2]), EXACT, False),
        (None, 0, EXACT, False),
        (b"a", "a", EXACT, False),
        ("\ud800", "\ud800", EXACT, True),
        ("\ud800", "\ud801", WHITESPACE, False),
    ],
)
def test_values(expected: Any, actual: Any, comparison: Comparison, same: bool) -> None:
    assert value(expected, actual, comparison) is same


def test_json_takes_a_tuple_for_a_list() -> None:
    expected = parse(encode([[1, 2], {"a": [3]}]))
    actual = parse(encode(((1, 2), {"a": (3,)})))
    assert same_value(expected, actual, EXACT, tuples_are_lists=True)
    assert not same_value(expected, actual, EXACT)


def test_colliding_members_are_compared_without_hashing() -> None:
    # As members of a Python set these take 2.5 s; of 2 million bytes, days.
    text = json.dumps(["e", [n * (2**61 - 1) for n in range(100_000)]]).encode()
    assert same_value(parse(text), parse(text), EXACT)


def test_a_forged_dict_with_a_key_twice_is_not_the_expected_one() -> None:
    assert not same_value(parse(encode({"a": 1})), parse(b'["d", ["a", "a"], [1, 1]]'), EXACT)


def test_sets_in_sets_cost_what_their_parts_do() -> None:
    """A key that is made anew at each level would take 2 to the power of the depth: this would never end."""
    nested: Any = frozenset({1})
    other: Any = frozenset({2})
    for _ in range(60):
        nested, other = frozenset({nested, 0}), frozenset({other, 0})
    assert value(nested, nested)
    assert not value(nested, other)
    assert value({"k": [nested]}, {"k": [nested]})
