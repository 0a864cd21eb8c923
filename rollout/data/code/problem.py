"""One programming problem, the words that ask for it, the reasons for which a row is none, and how columns are read.
Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rollout.data.records import DataError

if TYPE_CHECKING:
    from executor_service import Program


_NAMES = {
    "python": "Python",
    "cpp": "C++",
    "java": "Java",
    "go": "Go",
    "rust": "Rust",
    "javascript": "JavaScript",
}
"""Languages whose names in a sentence are not those of their blocks."""


class RowFault(StrEnum):
    """Reason that a row is no problem that can be graded."""

    BAD_ROW = "bad row"
    """A column is missing or has a value of another kind."""
    TWICE = "twice"
    """An earlier row has the same question and tests."""
    NO_TESTS = "no tests"
    SOLUTION_FAILS = "solution fails"
    """The data's own solution does not pass its tests, or they can't be run."""
    INCOMPLETE = "incomplete tests"
    """The data say that tests are missing, so that wrong programs could pass."""
    INTERACTIVE = "interactive"
    """The program talks with the judge."""
    FILES = "files"
    """The program reads or writes files instead of its standard streams."""
    OTHER_EDITION = "needs another edition"
    """The tests hold values that JSON does not keep; another edition of the data has them."""
    NEEDS_PYTHON = "needs Python"
    """The tests call functions, and another language is asked for."""
    TOO_LARGE = "too large"
    """The tests exceed what is read of one problem."""


class UnusableRow(DataError):
    """A row that is no problem. The text starts with file and line."""

    def __init__(self, fault: RowFault, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class GeneratorRun:
    """A program that prints one test's input, and its arguments."""

    generator: Program
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TestRecipe:
    """Programs that make a problem's tests."""

    runs: tuple[GeneratorRun, ...]
    solution: Program
    """Prints a test's output."""
    validator: Program | None = None
    """Ends with 0 if a test's input is as the question says."""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """One problem."""

    uid: str
    question: str
    """The question, without any word on how to answer."""
    ground_truth: str
    """JSON text."""
    reward: str
    """Name of the reward function."""
    data_source: str
    where: str
    """File and line, for error messages."""
    solution: str = ""
    """The data's own in Python, if it has one."""
    recipe: TestRecipe | None = None
    """If the tests are yet to be made."""


def ask_of(problem: CodeProblem, language: str) -> str:
    """The end of a prompt: asks for a program in the language, in the form in which the rewards look for it."""
    name = _NAMES.get(language, language)
    block = f"at the end of your answer:\n```{language}\n...\n```"
    if problem.reward == "humaneval":
        return (
            f"Complete this function in {name}. Put the whole of it, with the imports that it needs, into one block, "
            + block
        )
    return f"Write {name} code. Put the whole program into one block, {block}"


def needs_python(problem: CodeProblem) -> bool:
    """Says whether its tests call Python: then no other language can be asked for."""
    truth = json.loads(problem.ground_truth)
    if isinstance(truth, list):  # of cases, or of assertions
        return any(isinstance(each, str) for each in truth)
    return problem.reward != "code_tests" or bool(truth.get("fn_name") or truth.get("assert_case"))


def text_of(record: Mapping[str, Any], key: str, where: str) -> str:
    """A text that is not empty. Raises UnusableRow."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UnusableRow(
            RowFault.BAD_ROW, where, f"{key} must be a text that is not empty, but is {str(value)[:40]!r}"
        )
    return value


def with_starter(question: str, record: Mapping[str, Any]) -> str:
    """The question, with the code that the row's `starter_code` begins an answer with, if it has some."""
    starter = str(record.get("starter_code") or "").strip()
    return f"{question.strip()}\n\nStart from this code:\n```python\n{starter}\n```" if starter else question


def list_of(value: Any) -> list[Any]:
    """A list as it is; of anything else nothing, for columns that a problem can do without."""
    return value if isinstance(value, list) else []


def smallest(sizes: Sequence[int], most: int) -> list[int]:
    """Places, in their order, of as many of the smallest as fit into `most` together."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    sums = itertools.accumulate(sizes[index] for index in order)
    return sorted(index for index, total in zip(order, sums, strict=True) if total <= most)


def json_of(record: Mapping[str, Any], key: str, where: str) -> Any:
    """A value that the data write as JSON text. Raises UnusableRow."""
    value = record.get(key)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnusableRow(RowFault.BAD_ROW, where, f"{key} must be JSON: {error}") from None


def tests_of(record: Mapping[str, Any], keys: Iterable[str], where: str) -> tuple[list[str], list[str]]:
    """Inputs and outputs of all of these columns: `{"input": [...], "output": [...]}`, or a list of `{"input",
    "output"}`. Raises UnusableRow, also if there is none."""
    inputs: list[Any] = []
    outputs: list[Any] = []
    for key in keys:
        value = record.get(key) or []
        if isinstance(value, Mapping):
            inputs += list_of(value.get("input"))
            outputs += list_of(value.get("output"))
        elif isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
            inputs += [each.get("input") for each in value]
            outputs += [each.get("output") for each in value]
        else:
            raise UnusableRow(RowFault.BAD_ROW, where, f"{key} must be an object of lists, or a list of objects")
        if len(inputs) != len(outputs) or not all(isinstance(text, str) for text in (*inputs, *outputs)):
            raise UnusableRow(RowFault.BAD_ROW, where, f"{key} must have input and output, both texts, as many of each")
    if not inputs:
        raise UnusableRow(RowFault.NO_TESTS, where, f"has no tests in {', '.join(keys)}")
    return inputs, outputs


def truth_text(inputs: list[str], outputs: list[str], time_limit_s: float | None = None, **more: Any) -> str:
    """The ground truth of `code_tests`, without what is empty."""
    truth: dict[str, Any] = {"inputs": inputs, "outputs": outputs}
    if time_limit_s is not None and time_limit_s > 0:
        truth["time_limit_s"] = time_limit_s
    return json.dumps(truth | {key: value for key, value in more.items() if value})
