"""A request to grade as the server holds it: valid, with every limit set."""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.grading.comparison import TOLERANCE
from executor_service.grading.model import (
    AssertCase,
    CheckerConvention,
    Comparison,
    PytestCase,
    StdioCase,
    Tolerance,
    VerifyStyle,
)
from executor_service.model import InputFile, RunRequest


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A FunctionCase, ready to be sent and compared."""

    case_id: str
    ask: bytes
    """Text of the arguments, as the candidate's worker takes them."""
    expected: bytes
    """Text of the value that it must return."""
    tuples_are_lists: bool = False


CheckedCase = StdioCase | FunctionCall | AssertCase | PytestCase


@dataclass(frozen=True, slots=True)
class JudgeProgram:
    """A checker or interactor."""

    program: RunRequest
    """Complete but for the files of a case."""
    convention: CheckerConvention
    full_points: float


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A candidate and its cases. Every case has an id."""

    program: RunRequest
    """The candidate: code, language, files, limits of each case, tenant and request_id."""
    style: VerifyStyle
    comparison: Comparison
    cases: tuple[CheckedCase, ...]
    test_files: tuple[InputFile, ...] = ()
    setup_code: str = ""
    stop_on_failure: bool = False
    tolerance: Tolerance = TOLERANCE
    """For Comparison.FLOAT."""
    checker: JudgeProgram | None = None
    """Decides in place of `comparison`."""
    interactor: JudgeProgram | None = None
    """Talks with the candidate in each case."""
