"""The facts of grading: a candidate, its cases, and the verdicts.

Invariants: everything is immutable; a verdict always says who could have caused it; what a candidate could have caused
is POLICY, its own crash, its time limit and a value that can't be compared included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from executor_service.guest.serve.values import decode
from executor_service.model import Cause, Compilation, ExecutionResult, InputFile, Limits


class VerifyStyle(StrEnum):
    """Ways to check a candidate."""

    STDIO = "STDIO"
    """A program: standard input in, standard output compared."""
    FUNCTION = "FUNCTION"
    """A function: called, its value compared."""
    ASSERT = "ASSERT"
    """Assertions over its functions, which run elsewhere."""
    PYTEST = "PYTEST"
    """Test files, which run elsewhere and import it as `solution`."""


class Comparison(StrEnum):
    """Ways to compare two outputs."""

    EXACT = "EXACT"
    """Byte for byte; values with ==."""
    WHITESPACE = "WHITESPACE"
    """Line by line, ignoring white space at the end of lines and of the text."""
    FLOAT = "FLOAT"
    """As WHITESPACE, and numbers may differ by a `Tolerance`; two whole numbers may not."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Greatest difference of two numbers with Comparison.FLOAT: whichever of the two bounds allows more."""

    absolute: float = 1e-6
    relative: float = 1e-6
    """As a share of the larger number."""


class CheckerConvention(StrEnum):
    """Ways to call a checker or interactor, and to hear its verdict."""

    TESTLIB = "TESTLIB"
    """That of Codeforces."""
    KATTIS = "KATTIS"
    """That of Kattis's problem packages: "output validators"."""


@dataclass(frozen=True, slots=True)
class Checker:
    """A program of the task that decides whether what a candidate printed is right, in a sandbox of its own.

    It finds the files `input`, `output` (of the candidate) and `answer` (expected), is called with these names as
    testlib's checkers are, and says by its exit code: 0 right; 1, 2, 4 or 8 wrong; 7 right in part, beside a line
    `points 0.5` on standard error. By Kattis's convention it is called with `input answer feedback/`, reads the output
    from standard input, and says by its exit code: 42 right, 43 wrong.

    As an interactor it runs beside the candidate, joined by their standard streams; it finds `input` and `answer`, may
    write `output`, and says the same by its exit code, and by 3 that it has failed itself. It has no `entry_point`.
    """

    code: str
    language: str = "python"
    entry_point: str = ""
    """For python, instead of exit codes: a function of the source. Called with input, expected output and output, as
    texts, it returns True or False, or points."""
    files: tuple[InputFile, ...] = ()
    limits: Limits = field(default_factory=Limits)
    convention: CheckerConvention = CheckerConvention.TESTLIB
    full_points: float = 1.0
    """Points that are a whole case."""


class Verdict(StrEnum):
    """Verdicts that one case can get."""

    PASSED = "PASSED"
    """The candidate is right."""
    WRONG_ANSWER = "WRONG_ANSWER"
    """It answered, wrongly."""
    FAILED = "FAILED"
    """It failed: see the outcome of its execution, or the message."""
    BROKEN_CASE = "BROKEN_CASE"
    """The case itself is broken; the cause is TASK."""
    NOT_RUN = "NOT_RUN"
    """An earlier case did not pass, and `stop_on_failure` was set; the cause is that of the cases before."""
    ERROR = "ERROR"
    """The check could not be done; the cause is INFRA."""
    PARTIAL = "PARTIAL"
    """The candidate is right in part: see the score."""


@dataclass(frozen=True, slots=True)
class StdioCase:
    """A program's input and what it must print."""

    stdin: bytes
    expected_stdout: bytes
    case_id: str = ""
    alternatives: tuple[bytes, ...] = ()
    """Other outputs that are right too."""


@dataclass(frozen=True, slots=True)
class FunctionCase:
    """A call and what it must return: plain Python values."""

    arguments: tuple[Any, ...] = ()
    expected: Any = None
    keywords: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    case_id: str = ""
    tuples_are_lists: bool = False
    """A tuple counts as the list with the same items, as befits an expected value from JSON, which has no tuples."""


@dataclass(frozen=True, slots=True)
class AssertCase:
    """Statements that must not raise."""

    source: str
    case_id: str = ""


@dataclass(frozen=True, slots=True)
class PytestCase:
    """Tests of the test files."""

    node_id: str = ""
    """Empty: every test found, with a result for each."""
    case_id: str = ""


Case = StdioCase | FunctionCase | AssertCase | PytestCase


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The verdict on one case."""

    case_id: str
    verdict: Verdict
    cause: Cause
    execution: ExecutionResult | None = None
    """Run of the candidate in this case; None if it was not started."""
    actual: bytes | None = None
    """For FUNCTION: the value that it returned, as the text of `grading.values`; None where there is none to show."""
    message: str = ""
    """One sentence for people. It may quote the test."""
    score: float = 0.0
    """From 0 to 1: 1 for PASSED, between for PARTIAL, else 0."""

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    @property
    def value(self) -> Any:
        """`actual` as a Python value; None where there is none to show."""
        return None if self.actual is None else decode(self.actual)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The verdicts, one per case in the order of the request; for PYTEST without node id one per test found."""

    cases: tuple[CaseResult, ...]
    cause: Cause
    """INFRA when any case is, else TASK when any case is, else POLICY."""
    compilation: Compilation | None = None
    """The compiler's result, if the language compiles. The executions of the cases repeat it without its output."""
    deduplicated: bool = False

    @property
    def passed(self) -> int:
        """Number of cases that passed."""
        return sum(case.passed for case in self.cases)

    @property
    def all_passed(self) -> bool:
        return self.passed == len(self.cases)
