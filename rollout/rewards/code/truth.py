"""Reads the ground truth of data as cases that can be graded. Pure.

The ground truth is a JSON text (or a mapping or list of the row), in the forms that are in use: APPS, TACO and verl's
`{"inputs": [...], "outputs": [...]}`, with `fn_name`, `time_limit_s`, `checker` or `interactor`; lists of
`{"input": ..., "output": ...}` as LiveCodeBench has them, perhaps with `alternatives`, other outputs that are right;
`{"assert_case": [...]}` of KodCode, MBPP's `test_list`. One that can't be used raises NotScored (TASK), and the
sentence says where: no answer is wrong because of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor_service import (
    AssertCase,
    Cause,
    Checker,
    CheckerConvention,
    FunctionCase,
    InputFile,
    PytestCase,
    StdioCase,
)
from rollout.rewards.base import NotScored, Sample

_PAIRS = (("input", "output"), ("stdin", "stdout"), ("input", "expected_output"))
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Programs:
    """Inputs and outputs of a program."""

    cases: tuple[StdioCase, ...]
    checker: Checker | None = None
    interactor: Checker | None = None
    time_limit_s: float = 0.0
    """The problem's own, for each case; 0: none."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a function and their values."""

    name: str
    cases: tuple[FunctionCase, ...]
    time_limit_s: float = 0.0
    """The problem's own, for each call; 0: none."""


@dataclass(frozen=True, slots=True)
class Asserts:
    """Statements about functions."""

    cases: tuple[AssertCase, ...]
    setup_code: str = ""


@dataclass(frozen=True, slots=True)
class Tests:
    """Files of tests, and which of their tests have to pass; none: all that are found."""

    test_files: tuple[InputFile, ...]
    files: tuple[InputFile, ...] = ()
    cases: tuple[PytestCase, ...] = (PytestCase(),)


def unusable(problem: str) -> NotScored:
    """Error for a ground truth that can't be used."""
    return NotScored(Cause.TASK, f"ground truth: {problem}")


def document_of(sample: Sample, *columns: str) -> Any:
    """Contents of the ground truth; if it is empty, of the first of these columns that the row has."""
    value: Any = sample.ground_truth
    if not value:
        value = next((sample.row[name] for name in columns if sample.row.get(name) is not None), None)
        if value is None:
            raise unusable(f"is empty, and the row has no {' or '.join(columns)}" if columns else "is empty")
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def programs_of(document: Any) -> Programs:
    """Cases of standard input and output."""
    if isinstance(document, Mapping) and document.get("fn_name"):
        raise unusable("has fn_name, which code_function grades")
    pairs = _pairs(document)
    cases = [
        StdioCase(
            _stream(given, f"input {index}"),
            _stream(wanted, f"output {index}"),
            str(index),
            tuple(_stream(other, f"alternative output {index}") for other in _alternatives(document, index)),
        )
        for index, (given, wanted) in enumerate(pairs)
    ]
    judges = document if isinstance(document, Mapping) else {}
    checker, interactor = _checker(judges, "checker"), _checker(judges, "interactor")
    return Programs(tuple(cases), checker, interactor, _time_limit(document))


def calls_of(document: Any, *, name: str = "") -> Calls:
    """Calls; `name` is used if the document has none. Inputs are JSON values, one after another, or a list of them."""
    if isinstance(document, Mapping):
        name = str(document.get("fn_name") or name)
    if not name:
        raise unusable("has no fn_name, which says what to call")
    pairs = _pairs(document)
    arguments = [_arguments(given, index) for index, (given, _) in enumerate(pairs)]
    values = [_value(wanted) for _, wanted in pairs]
    # APPS writes a value as a list of one, beside lists of arguments.
    plain = all(isinstance(given, list) for given, _ in pairs)
    if plain and all(isinstance(wanted, list) and len(wanted) == 1 for _, wanted in pairs):
        values = [wanted[0] for wanted in values]
    cases = [
        FunctionCase(tuple(given), wanted, case_id=str(index), tuples_are_lists=True)
        for index, (given, wanted) in enumerate(zip(arguments, values, strict=True))
    ]
    return Calls(name, tuple(cases), _time_limit(document))


def asserts_of(document: Any, row: Mapping[str, Any]) -> Asserts:
    """Assertions: a list of texts, or `assert_case`, `test_list` or `asserts` of a mapping; or one text."""
    setup: list[Any] = [row.get("test_setup_code"), *_list(row.get("test_imports"))]
    if isinstance(document, Mapping):
        found = next((document[key] for key in ("assert_case", "test_list", "asserts") if key in document), None)
        setup += [document.get("test_setup_code"), document.get("setup_code"), *_list(document.get("test_imports"))]
        document = found
    sources = _list(document)
    if not sources:
        raise unusable("has no assert_case or test_list")
    for index, source in enumerate(sources):
        if not isinstance(source, str) or not source.strip():
            raise unusable(f"assertion {index} is {source!r:.80}, must be a text that is not empty")
    cases = tuple(AssertCase(source, str(index)) for index, source in enumerate(sources))
    return Asserts(cases, "\n".join(str(each) for each in setup if each))


def pytests_of(document: Any) -> Tests:
    """pytest files: a text (one file), or a mapping with `test_files`, `files` (the candidate sees them) and `tests`,
    node ids."""
    if isinstance(document, str):
        return Tests((InputFile("test_solution.py", document.encode()),))
    if not isinstance(document, Mapping):
        raise unusable(f"is {type(document).__name__}, must be a text or an object with test_files")
    test_files = _files(document.get("test_files"), "test_files")
    if not test_files:
        raise unusable("has no test_files")
    names = _list(document.get("tests"))
    cases = tuple(PytestCase(str(name), str(name)[:128]) for name in names) or (PytestCase(),)
    return Tests(test_files, _files(document.get("files"), "files"), cases)


def _time_limit(document: Any) -> float:
    value = document.get("time_limit_s") or 0 if isinstance(document, Mapping) else 0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise unusable(f"time_limit_s is {value!r:.40}, must be a number of seconds")
    return float(value)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) or hasattr(value, "tolist") else [value]


def _pairs(document: Any) -> list[tuple[Any, Any]]:
    """Inputs with their outputs."""
    if isinstance(document, Mapping):
        if "inputs" not in document or "outputs" not in document:
            raise unusable("must have inputs and outputs")
        inputs, outputs = _list(document["inputs"]), _list(document["outputs"])
        if len(inputs) != len(outputs):
            raise unusable(f"has {len(inputs)} inputs and {len(outputs)} outputs")
        found = list(zip(inputs, outputs, strict=True))
    elif isinstance(document, Sequence) and not isinstance(document, str):
        found = [_pair(case, index) for index, case in enumerate(document)]
    else:
        raise unusable(f"is {str(document)[:40]!r}, must be JSON with inputs and outputs, or a list of cases")
    if not found:
        raise unusable("has no cases")
    return found


def _alternatives(document: Any, index: int) -> list[Any]:
    case = None if isinstance(document, Mapping) else document[index]
    found = case.get("alternatives") if isinstance(case, Mapping) else None
    if found is not None and not isinstance(found, (list, tuple)):
        raise unusable(f"case {index} has alternatives {found!r:.40}, must be a list of outputs")
    return list(found or ())


def _pair(case: Any, index: int) -> tuple[Any, Any]:
    for given, wanted in _PAIRS:
        if isinstance(case, Mapping) and given in case and wanted in case:
            left, right = case[given], case[wanted]
            if isinstance(left, Mapping) and isinstance(right, Mapping) and "stdin" in left and "stdout" in right:
                return left["stdin"], right["stdout"]
            return left, right
    raise unusable(f"case {index} must be an object with input and output")


def _stream(value: Any, where: str) -> bytes:
    """A text, lines of one, or a number; None is nothing."""
    if isinstance(value, (list, tuple)):
        value = "\n".join(str(line) for line in value)
    if isinstance(value, Mapping):
        raise unusable(f"{where} is an object, must be a text")
    try:
        return b"" if value is None else str(value).encode()
    except UnicodeEncodeError:
        raise unusable(f"{where} is not valid Unicode") from None


def _arguments(given: Any, index: int) -> list[Any]:
    if not isinstance(given, str):
        return list(given) if isinstance(given, (list, tuple)) else [given]
    found, at = [], 0
    text = given.strip()
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise unusable(f"input {index} is {given[:40]!r}, must be JSON values: {error}") from None
        found.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _value(wanted: Any) -> Any:
    if not isinstance(wanted, str):
        return wanted
    try:
        return json.loads(wanted)
    except (ValueError, RecursionError):
        return wanted  # a text that is written as it is


def _checker(document: Mapping[str, Any], name: str) -> Checker | None:
    """A text: Python, of which a checker defines `check`; a mapping: `code`, `language`, `entry_point`, `files`,
    `convention` (`testlib` or `kattis`), `full_points`."""
    value = document.get(name)
    if not value:
        return None
    if isinstance(value, str):
        return Checker(value, entry_point="check" if name == "checker" else "")
    known = ("code", "language", "entry_point", "files", "convention", "full_points")
    if not isinstance(value, Mapping) or not value.get("code") or set(value) - set(known):
        raise unusable(f"{name} must be a text or an object of {', '.join(known)}")
    return Checker(
        str(value["code"]),
        str(value.get("language") or "python"),
        str(value.get("entry_point") or ""),
        _files(value.get("files"), f"{name}.files"),
        convention=_convention(value.get("convention"), name),
        full_points=_points(value.get("full_points"), name),
    )


def _convention(value: Any, name: str) -> CheckerConvention:
    names = {each.lower(): each for each in CheckerConvention}
    if value is not None and value not in names:
        raise unusable(f"{name}.convention is {value!r:.40}, must be one of {', '.join(names)}")
    return names[value] if value else CheckerConvention.TESTLIB


def _points(value: Any, name: str) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise unusable(f"{name}.full_points is {value!r:.40}, must be a number above 0")
    return float(value)


def _files(value: Any, where: str) -> tuple[InputFile, ...]:
    """A mapping of paths to texts, or a list of `{path, content}`."""
    if not value:
        return ()
    if isinstance(value, Mapping):
        value = [{"path": path, "content": content} for path, content in value.items() if content is not None]
    for file in value:
        good = isinstance(file, Mapping) and isinstance(file.get("path"), str) and isinstance(file.get("content"), str)
        if not good:
            raise unusable(f"{where} must be an object of texts by path, or a list of path and content")
    return tuple(InputFile(file["path"], file["content"].encode()) for file in value)
