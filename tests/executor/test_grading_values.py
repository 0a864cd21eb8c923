"""Plain values: what crosses, what it is afterwards, and what is refused."""

from __future__ import annotations

import collections
import enum
import json
import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_service.config import ExecutorConfig
from executor_service.grading.comparison import same_value
from executor_service.grading.model import Comparison, Verdict
from executor_service.grading.rules import judge_value
from executor_service.grading.validation import validate_verify
from executor_service.grading.values import Malformed, check, parse
from executor_service.guest.serve import values
from executor_service.guest.serve.values import MAX_DEPTH, Foreign, NotPlain, decode, encode
from executor_service.v1 import executor_pb2 as pb
from fairbox.errors import FieldErrors

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(hashable, inner, max_size=4),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of equal types at every depth, and NaN equal to NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, frozenset):
        left = list(b)
        for each in a:
            found = next((index for index, other in enumerate(left) if same(each, other)), None)
            if found is None:
                return False
            del left[found]
        return not left
    return bool(a == b)


@given(plain)
def test_a_plain_value_crosses_unchanged(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(plain)
def test_a_plain_value_survives_text_tree_and_message(value: Any) -> None:
    tree = parse(encode(value))
    message = pb.CaseResult(actual=json.dumps(tree))
    again = parse(pb.CaseResult.FromString(message.SerializeToString()).actual.encode())
    assert same_value(tree, again, Comparison.EXACT)
    assert same_value(again, tree, Comparison.EXACT)


class Text(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return "else"


class Number(int):
    def __int__(self) -> int:
        return 5

    def __index__(self) -> int:
        return 5


class Items(dict[str, int]):
    def items(self) -> Any:
        return [("x", 1)]


Pair = collections.namedtuple("Pair", "a b")


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Text("a"), "a"),
        (Number(3), 3),
        (Items(y=2), {"y": 2}),
        (Pair(1, 2), (1, 2)),
        (Colour.RED, 3),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (numpy.float64(1.5), 1.5),
        (numpy.int32(7), 7),
        (numpy.bool_(True), True),
        ([numpy.int64(1)], [1]),
    ],
)
def test_a_subclass_arrives_as_the_plain_type_that_it_extends(value: Any, arrives: Any) -> None:
    assert same(decode(encode(value)), arrives)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint64", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 2)])
def test_an_array_of_numbers_crosses_as_one(kind: str, shape: tuple[int, ...]) -> None:
    array = numpy.ones(shape, kind)
    arrived = decode(encode(array))
    assert (arrived.dtype, arrived.shape) == (array.dtype, shape)
    assert (arrived == array).all()
    parse(encode([array]))


@pytest.mark.parametrize(
    "value", [object(), numpy.array([{}]), numpy.array(["a"]), iter([]), len, int, bytearray(b"x"), [object()]]
)
def test_what_is_not_plain_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(Foreign, match="not plain data"):
        encode(value)


def test_depth_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_NODES", 10_000)
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    shared: list[Any] = [0]
    for _ in range(40):  # 2**40 parts, in memory only 40
        shared = [shared, shared]
    for value in (deep, shared, "x" * (17 << 20)):
        with pytest.raises(NotPlain):
            encode(value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b'["q", []]',
        b'["l"]',
        b'["l", 3]',
        b'["i", "zz"]',
        b'["b", "f"]',
        b'["s", "ff"]',
        b'["d", [1], []]',
        b'["c", "1"]',
        b'["c", "1 x"]',
        b'["c", 1]',
        b'["n", "O", ["l", []]]',
        b'["n", "f8"]',
        b'["e", [["n", "f8", ["l", []]]]]',
        b'["o", 0, true, "E", true]',
        b'["r", 0]',
        b'["x", 1, "E", []]',
        b'["d", [["l", []]], [1]]',
        b'["e", [["d", [], []]]]',
        b'["e", [["t", [["l", []]]]]]',
        b'"\\ud800"',
        b"[" * 100_000,
        b'["l", [' * 500 + b"]]" * 500,
        b"1" * 5000,
        b"\xff",
    ],
)
def test_text_that_is_no_plain_value_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        parse(text)


@pytest.mark.parametrize(
    "text", [b'["d", [["l", []]], [1]]', b'["e", [["d", [], []]]]', b'["l", {"a": 1}]', b'["o", 0]']
)
def test_text_that_can_not_be_built_is_refused_where_values_are_built(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"value|hashed"):
        decode(text)


def test_texts_that_go_into_one_call_are_bounded_together() -> None:
    parts = [0]
    check(encode([0] * 600_000), parts=parts)
    with pytest.raises(Malformed, match="parts"):
        check(encode([0] * 600_000), parts=parts)
    check(b'["l", [["l", []]]]', depth=MAX_DEPTH - 1)
    with pytest.raises(Malformed, match="deep"):
        check(b'["l", [["l", []]]]', depth=MAX_DEPTH)


def test_every_text_of_a_call_that_is_no_value_is_named() -> None:
    call = pb.FunctionCase(arguments=["1", "[2]"], keywords={"x": "{}", "y": '"y"'}, expected="")
    request = pb.VerifyCodeRequest(
        code="x", style=pb.VERIFY_STYLE_FUNCTION, entry_point="f", cases=[pb.VerifyCase(function=call)]
    )
    with pytest.raises(FieldErrors) as caught:
        validate_verify(request, installed={"python"}, policy=ExecutorConfig().policy())
    named = {error.field.removeprefix("cases[0].function.") for error in caught.value.errors}
    assert named == {"arguments[1]", "keywords['x']", "expected"}
    call.arguments[:] = [f'"{"x" * (9 << 20)}"'] * 2
    request.cases[0].function.CopyFrom(call)
    with pytest.raises(FieldErrors, match="must have at most 16777216"):
        validate_verify(request, installed={"python"}, policy=ExecutorConfig().policy())


def test_an_int_that_python_refuses_to_print_is_judged_and_not_returned() -> None:
    long, short = 10**4400, 10**4200
    for value, shown in ((long, None), (short, encode(short))):
        finding = judge_value(encode([value, [], ""]), parse(encode(value)), Comparison.EXACT, tuples_are_lists=False)
        assert (finding.verdict, finding.actual) == (Verdict.PASSED, shown)
