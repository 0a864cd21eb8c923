"""Cases of each style on a real server: what a test may do with a candidate, and what a verdict says."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

from executor_service import (
    AssertCase,
    CaseResult,
    Cause,
    ExecutorClient,
    FunctionCase,
    InputFile,
    Limits,
    Outcome,
    PytestCase,
    Verdict,
)
from executor_service.grading.model import Case
from tests.executor.servers import Server, running

ADD = "def add(a, b):\n    return a + b\n"
PASSED = (Verdict.PASSED, Cause.POLICY)
WRONG = (Verdict.WRONG_ANSWER, Cause.POLICY)
FAILED = (Verdict.FAILED, Cause.POLICY)
BROKEN = (Verdict.BROKEN_CASE, Cause.TASK)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose programs find numpy and pytest."""
    with running("max_concurrent=4", f"python={sys.executable}") as started:
        yield started


async def judged(executor: ExecutorClient, code: str, case: Case, **more: object) -> CaseResult:
    [found] = (await executor.verify(code, [case], **more)).cases  # type: ignore[arg-type]
    assert found.execution is not None, found
    return found


async def asserted(executor: ExecutorClient, code: str, sources: Iterable[str]) -> dict[str, tuple[Verdict, Cause]]:
    """Verdict on each assertion, of one request."""
    found = (await executor.verify(code, list(map(AssertCase, sources)))).cases
    return {source: (case.verdict, case.cause) for source, case in zip(sources, found, strict=True)}


def file_of_tests(test: str) -> list[InputFile]:
    return [InputFile("test_it.py", test.encode())]


@pytest.mark.parametrize(
    ("code", "entry", "arguments", "expected", "verdict"),
    [
        (ADD, "add", "[1, 2]", "3", PASSED),
        (ADD, "add", '["a", "b"]', '"ab"', PASSED),
        (ADD, "add", "[1, 2]", "4", WRONG),
        ("class Solution:\n    def f(self, x): return (x, {'k': x})\n", "Solution.f", "[1]", '[1, {"k": 1}]', PASSED),
        ("async def f(): return 3\n", "f", "[]", "3", PASSED),
        ("from __future__ import annotations\ndef f(): return f.__module__\n", "f", "[]", '"solution"', PASSED),
        ("import numpy\ndef f(): return numpy.int64(3)\n", "f", "[]", "3", PASSED),
        ("import numpy\ndef f(): return numpy.array([[1, 2]])\n", "f", "[]", "[[1, 2]]", PASSED),
        ("def f(): return list(range(1_000_000))\n", "f", "[]", "[]", WRONG),
        ("if __name__ == '__main__': raise SystemExit\ndef f(): return 1\n", "f", "[]", "1", PASSED),
        ("def f(): yield 1\n", "f", "[]", "[1]", WRONG),
        ("def f(): raise KeyError(1)\n", "f", "[]", "1", FAILED),
        ("def g(): return 1\n", "f", "[]", "1", FAILED),
        ("def f(:\n", "f", "[]", "1", FAILED),
    ],
)
async def test_function(
    executor: ExecutorClient, code: str, entry: str, arguments: str, expected: str, verdict: tuple[Verdict, Cause]
) -> None:
    """Written down in JSON, in which a list may be a tuple."""
    case = FunctionCase(tuple(json.loads(arguments)), json.loads(expected), tuples_are_lists=True)
    found = await judged(executor, code, case, entry_point=entry)
    assert (found.verdict, found.cause) == verdict, found


async def test_the_value_and_the_output_of_a_function_are_returned(executor: ExecutorClient) -> None:
    code = "def f():\n    print('hi')\n    return [1]\n"
    found = await judged(executor, code, FunctionCase((), 2), entry_point="f")
    assert found.actual == b'["l", [1]]'
    assert found.execution is not None
    assert (found.execution.stdout.data, found.execution.outcome) == (b"hi\n", Outcome.FINISHED)


async def test_what_a_function_raises_is_on_stderr_with_its_lines(executor: ExecutorClient) -> None:
    found = await judged(executor, "def f():\n    raise ValueError('no')\n", FunctionCase((), 2), entry_point="f")
    assert found.message == "The candidate raised ValueError: no"
    assert found.execution is not None
    assert "raise ValueError('no')" in found.execution.stderr.text
    assert (found.execution.outcome, found.execution.exit_code) == (Outcome.NONZERO_EXIT, 1)


CLASSES = """
class Stack:
    def __init__(self, items=()):
        self.items = list(items)
        self.next = None
    def push(self, item):
        self.items.append(item)
        return self
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]
    def __iter__(self):
        return iter(self.items)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.items.clear()
    def __repr__(self):
        return f"Stack({self.items})"

class Empty(ValueError):
    pass

def pop(stack):
    if not stack.items:
        raise Empty("nothing", 3)
    return stack.items.pop()

def apply(function, value):
    return function(function(value))

def sort(items, table):
    items.sort()
    table["done"] = True

def count(n):
    yield from range(n)

async def later(x):
    return x + 1

def kind(x):
    return isinstance(x, int), int

LIMIT = 7
"""


USES = [
    "s = Stack([1])\ns.push(2).push(3)\nassert len(s) == 3 and s[0] == 1 and s.items == [1, 2, 3]",
    "s = Stack()\nassert not s\ns.push(1)\nassert s",
    "s = Stack()\ns.next = Stack([5])\nassert s.next.items == [5] and s.next.next is None",
    "assert isinstance(Stack(), Stack) and not isinstance(3, Stack)",
    "s = Stack()\nassert s is s and s == s and Stack() != Stack() and s in [s]",
    "assert [x + 1 for x in Stack([1, 2])] == [2, 3] and 2 in Stack([1, 2]) and 3 not in Stack([1])",
    "with Stack([1]) as s:\n    assert len(s) == 1\nassert len(s) == 0",
    "assert repr(Stack([1])) == 'Stack([1])' and f'{Stack()}' == 'Stack([])'",
    "try:\n    pop(Stack())\n    assert False\nexcept Empty as error:\n    assert error.args == ('nothing', 3)",
    "try:\n    pop(Stack())\n    assert False\nexcept ValueError as error:\n    assert type(error) is Empty",
    "assert pop(Stack([4])) == 4",
    "assert apply(lambda x: x * 3, 2) == 18 and apply(str, 1) == '1'",
    "calls = []\napply(calls.append, 2)\nassert calls == [2, None]",
    "a, t = [3, 1, 2], {}\nsort(a, t)\nassert a == [1, 2, 3] and t == {'done': True}",
    "it = count(3)\nassert next(it) == 0 and list(it) == [1, 2]",
    "import asyncio\nassert asyncio.run(later(1)) == 2",
    "assert kind(3) == (True, int)",
    "assert LIMIT == 7",
    "from solution import Stack as S, LIMIT\nimport solution\nassert solution.LIMIT == LIMIT and S is Stack",
    "from solution import *\nassert len(Stack()) == 0",
    "f = Stack([1]).push\nf(2)\nassert f.__name__ == 'push'",
    "def check(candidate):\n    assert candidate(Stack([1])) == 1\ncheck(pop)",
    "try:\n    apply(1, 2)\n    assert False\nexcept TypeError as error:\n    assert 'callable' in str(error)",
    "assert apply(lambda x: pop(Stack([x + 1])), 1) == 3",
]


async def test_an_assertion_may_do_this_with_a_candidate(executor: ExecutorClient) -> None:
    expected = dict.fromkeys(USES, PASSED)
    assert await asserted(executor, CLASSES, expected) == expected


ROOTS = """
import cmath, math, numpy
def root(x): return cmath.sqrt(x)
def roots(xs): return numpy.sqrt(numpy.array(xs))
def total(xs): return type(xs).__name__, xs.sum()
def string(x): return str(x)
class Queue:
    def push(self, x): return x + 1
queue = Queue()
class Forged:
    def __getattr__(self, name): return lambda *_, **__: True
def forge():
    global math
    math = Forged()
forge()
"""


NUMBERS = {
    "assert root(-4) == 2j": PASSED,
    "assert math.isclose(abs(root(-4)), 2.0)": PASSED,
    "assert math.isclose(abs(root(-4)), 3.0)": WRONG,
    "assert cmath.isclose(root(2 + 2j) ** 2, 2 + 2j) and sys.maxsize": PASSED,
    "import numpy as np\nassert np.allclose(roots([4, 9]), [2, 3])": PASSED,
    "import numpy as np\nassert total(np.array([1, 2])) == ('ndarray', 3)": PASSED,
    "assert (roots([4, 9]) == [2, 4]).all()": WRONG,
    "assert string(3) == '3'": PASSED,
    "assert queue.push(3) == 4": PASSED,
}


async def test_numbers_arrays_and_standard_modules_of_an_assertion(executor: ExecutorClient) -> None:
    assert await asserted(executor, ROOTS, NUMBERS) == NUMBERS


@pytest.mark.parametrize(
    ("source", "setup", "verdict", "message"),
    [
        ("assert add(1, 2) == 4", "", WRONG, "line 1 of the case: assert add(1, 2) == 4"),
        ("assert sub(1, 2) == 4", "", FAILED, "name 'sub' is not defined"),
        ("assert add(1) == 4", "", FAILED, "missing 1 required positional argument"),
        ("assert add(1, 2 == 3", "", BROKEN, "SyntaxError"),
        ("assert add(1, 2) == 3", "def x(:", BROKEN, "SyntaxError"),
        ("assert add(1, 2) == 3", "import nowhere", BROKEN, "ModuleNotFoundError"),
        ("assert 1 == 2", "", BROKEN, "without the candidate"),
        ("raise SystemExit(0)", "", BROKEN, "without the candidate"),
        ("import os\nos._exit(0)", "", BROKEN, "without a verdict"),
        ("class Node: pass\nassert add(Node(), 1)", "", BROKEN, "only plain data and functions"),
        ("assert add(1, 2) == three", "three = add(1, 1) + 1", PASSED, ""),
    ],
)
async def test_a_case_is_broken_only_without_the_candidate(
    executor: ExecutorClient, source: str, setup: str, verdict: tuple[Verdict, Cause], message: str
) -> None:
    [found] = (await executor.verify(ADD, [AssertCase(source)], setup_code=setup)).cases
    assert (found.verdict, found.cause) == verdict, found
    assert message in found.message


STOPS = "class Stop(StopIteration): pass\ndef add(a, b): raise %s\n"
OWN = "class Own(Exception): pass\n"


@pytest.mark.parametrize(
    ("code", "source"),
    [
        (STOPS % "StopIteration", "assert all(map(lambda a: add(a, a) == 2 * a, [1, 2]))"),
        (STOPS % "Stop", "assert all(map(lambda a: add(a, a) == 2 * a, [1, 2]))"),
        (STOPS % "Stop", "class Sums:\n    def __iter__(self): return self\n    def __next__(self): return add(1, 2)\n"
         "assert list(Sums()) == []"),
        (STOPS % "StopIteration", "for total in iter(lambda: add(1, 2), 3): pass"),
        ("class Numbers:\n    @property\n    def total(self): raise StopIteration\nadd = Numbers()",
         "assert all(map(lambda a: add.total == 2 * a, [1, 2]))"),
        ("async def add(a, b): return a + b", "assert add(add(1, 2), 3) == 6"),
        (f"{OWN}def add(a, b): return Own", "assert add(add(1, 2), 3) == 6"),
        (f"{OWN}def add(a, b): raise Own", "try:\n    add(1, 2)\nexcept Exception as error:\n    add(error, 1)"),
        ("def add(a, b): return {}", "assert add(add(1, 2).items(), 3)"),
    ],
)  # fmt: skip
async def test_what_a_candidate_says_is_its_own_doing(executor: ExecutorClient, code: str, source: str) -> None:
    found = await judged(executor, code, AssertCase(source))
    assert (found.verdict, found.cause) == FAILED, found


async def test_only_the_time_of_the_candidate_is_charged_to_it(executor: ExecutorClient) -> None:
    source = "import time\ntime.sleep(0.5)\nassert add(1, 2) == 3\ntime.sleep(0.5)\nassert add(1, 2) == 3"
    began = time.monotonic()
    found = await judged(executor, ADD, AssertCase(source))
    assert found.verdict is Verdict.PASSED, found
    assert found.execution is not None
    assert 0 < found.execution.wall_time_s <= time.monotonic() - began - 1


async def test_a_candidate_that_hangs_in_an_assertion_meets_its_time_limit(executor: ExecutorClient) -> None:
    code, limits = "def f():\n    while True: pass\n", Limits(wall_time_s=1)
    found = await judged(executor, code, AssertCase("assert f()"), limits=limits)
    assert found.execution is not None
    assert (found.verdict, found.execution.outcome) == (Verdict.FAILED, Outcome.TIME_LIMIT)


TESTS = """
import pytest
from solution import add

@pytest.fixture
def three():
    return 3

def test_add(three):
    assert add(1, 2) == three

@pytest.mark.parametrize("x", [1, 2])
def test_many(x):
    assert add(x, x) == 2 * x

def test_wrong():
    assert add(1, 1) == 3

def test_raises():
    with pytest.raises(TypeError, match="unsupported"):
        add(1, "a")

class TestClass:
    def test_in_class(self):
        assert add(0, 0) == 0

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass
"""


async def test_pytest_has_a_result_for_each_test(executor: ExecutorClient) -> None:
    found = (await executor.verify(ADD, [PytestCase()], test_files=file_of_tests(TESTS))).cases
    assert {case.case_id.partition("::")[2]: case.verdict for case in found} == {
        "test_add": Verdict.PASSED,
        "test_many[1]": Verdict.PASSED,
        "test_many[2]": Verdict.PASSED,
        "test_wrong": Verdict.WRONG_ANSWER,
        "test_raises": Verdict.PASSED,
        "TestClass::test_in_class": Verdict.PASSED,
        "test_skipped": Verdict.FAILED,
    }


async def test_pytest_by_node_id(executor: ExecutorClient) -> None:
    expected = {
        "test_it.py::test_add": PASSED,
        "test_it.py::test_many": PASSED,
        "test_it.py::test_many[2]": PASSED,
        "test_it.py::test_wrong": WRONG,
        "test_it.py::TestClass": PASSED,
        "test_it.py::test_nothing": FAILED,
        "test_it.py::test_skipped": FAILED,
    }
    cases = [PytestCase(node, node) for node in expected]
    found = (await executor.verify(ADD, cases, test_files=file_of_tests(TESTS))).cases
    assert {case.case_id: (case.verdict, case.cause) for case in found} == expected


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        ("def test_a() assert 1\n", BROKEN),
        ("import nowhere\n", BROKEN),
        ("", BROKEN),
        ("def test_a(): assert False\n", BROKEN),
        ("from solution import nothing\n", FAILED),
        (
            "def test_a(capsys):\n    from solution import f\n    f()\n    assert capsys.readouterr().out == 'hi\\n'\n",
            PASSED,
        ),
        ("def test_a():\n    import solution\n    class Mine(solution.C): pass\n", FAILED),
    ],
)
async def test_pytest_files_of_all_kinds(executor: ExecutorClient, test: str, verdict: tuple[Verdict, Cause]) -> None:
    code = "def f(): print('hi')\nclass C: pass\n"
    [found] = (await executor.verify(code, [PytestCase()], test_files=file_of_tests(test))).cases
    assert (found.verdict, found.cause) == verdict, found
