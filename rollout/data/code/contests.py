"""Rows of programming contests: APPS, TACO, CodeContests, CodeContests+, Codeforces. Programs with standard input and
output, and functions by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rollout.data.code.problem import (
    CodeProblem,
    RowFault,
    UnusableRow,
    json_of,
    list_of,
    tests_of,
    text_of,
    truth_text,
    with_starter,
)

_PYTHON3 = 3
"""Number of the language in CodeContests' solutions."""
_LEAST_MS = 100
"""CodeContests+ gives limits in milliseconds; no contest allows so many seconds."""
_SECONDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:s|sec|secs|second|seconds)?\s*", re.IGNORECASE)
_CODEFORCES_CHECKER = """\
import contextlib, io, runpy, sys

def check(given, expected, actual):
    sys.argv[:] = ["codeforces_checker.py", "input", "answer", "output"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_path("codeforces_checker.py", run_name="__main__")
    return float(said.getvalue().split()[-1]) == 1
"""
"""Runs a checker of the data, which prints 1 for a right output."""


def apps(record: Mapping[str, Any], where: str) -> CodeProblem:
    """APPS, TACO, PRIME: `question`, `problem` or `prompt`, and `input_output`. Raises UnusableRow."""
    given = record["input_output"]
    document = json_of(record, "input_output", where) if given else None
    if given and (not isinstance(document, (dict, list)) or not document):
        raise UnusableRow(RowFault.BAD_ROW, where, "input_output must be JSON with cases")
    if not document or (isinstance(document, dict) and document.get("inputs") == []):
        raise UnusableRow(RowFault.NO_TESTS, where, "has no tests in input_output")
    question = next((record[key] for key in ("question", "problem", "prompt") if record.get(key)), None)
    if not isinstance(question, str) or not question.strip():
        raise UnusableRow(RowFault.BAD_ROW, where, "needs question, problem or prompt, a text that is not empty")
    question = with_starter(question, record)
    limit = _seconds(record.get("time_limit"))
    if limit and isinstance(document, dict):
        document = {"time_limit_s": limit} | document
    uid = str(record.get("problem_id") or record.get("id") or where)
    source = str(record.get("data_source") or ("taco" if "picture_num" in record else "apps"))
    return CodeProblem(uid, question, json.dumps(document), "code_tests", source, where, _first(record))


def code_contests(record: Mapping[str, Any], where: str) -> CodeProblem:
    """DeepMind's CodeContests: all of its public, private and generated tests. Raises UnusableRow."""
    question = text_of(record, "description", where)
    if record.get("input_file") or record.get("output_file"):
        raise UnusableRow(RowFault.FILES, where, "the program reads or writes a file")
    inputs, outputs = tests_of(record, ("public_tests", "private_tests", "generated_tests"), where)
    limit = record.get("time_limit")
    parts = limit if isinstance(limit, Mapping) else {}
    seconds = (_seconds(parts.get("seconds")) or 0) + (_seconds(parts.get("nanos")) or 0) / 1e9
    given = record.get("solutions")
    solutions = given if isinstance(given, Mapping) else {}
    pairs = zip(list_of(solutions.get("language")), list_of(solutions.get("solution")), strict=False)
    solution = next((str(code) for language, code in pairs if language == _PYTHON3), "")
    uid = f"code_contests/{record.get('name') or where}"
    truth = truth_text(inputs, outputs, seconds)
    return CodeProblem(uid, question, truth, "code_tests", "deepmind/code_contests", where, solution)


def code_contests_plus(record: Mapping[str, Any], where: str) -> CodeProblem:
    """CodeContests+: its tests, and its checker in C++ that includes testlib.h. Raises UnusableRow."""
    question = text_of(record, "description", where)
    inputs, outputs = tests_of(record, ("test_cases",), where)
    limit = _seconds(record.get("time_limit"))
    if limit is not None and limit >= _LEAST_MS:
        limit /= 1000
    code = str(record.get("checker") or "").strip()
    checker = {"code": code, "language": "cpp"} if code else None
    submissions = [each for each in list_of(record.get("correct_submissions")) if isinstance(each, Mapping)]
    solution = next((str(each.get("code")) for each in submissions if each.get("language") == "py3"), "")
    truth = truth_text(inputs, outputs, limit, checker=checker)
    uid = f"code_contests_plus/{record.get('id') or where}"
    source = "ByteDance-Seed/Code-Contests-Plus"
    return CodeProblem(uid, question, truth, "code_tests", source, where, solution)


def codeforces(record: Mapping[str, Any], where: str) -> CodeProblem:
    """Codeforces by open-r1: its official tests, and its checker, if it has one. Raises UnusableRow."""
    parts = [text_of(record, "description", where)]
    if record.get("interaction_format"):
        raise UnusableRow(RowFault.INTERACTIVE, where, "the program talks with the judge")
    if record.get("input_mode") not in (None, "stdio"):
        raise UnusableRow(RowFault.FILES, where, "the program reads or writes a file")
    inputs, outputs = tests_of(record, ("official_tests",), where)
    if record.get("official_tests_complete") is False:
        raise UnusableRow(RowFault.INCOMPLETE, where, "official_tests_complete is false")
    for title, key in (("Input", "input_format"), ("Output", "output_format")):
        if record.get(key):
            parts.append(f"{title}\n{record[key]}")
    examples = [each for each in list_of(record.get("examples")) if isinstance(each, Mapping)]
    parts += [f"Example input\n{each.get('input')}\nExample output\n{each.get('output')}" for each in examples]
    if record.get("note"):
        parts.append(f"Note\n{record['note']}")
    own = str(record.get("generated_checker") or "").strip()
    files = {"codeforces_checker.py": own}
    checker = {"code": _CODEFORCES_CHECKER, "entry_point": "check", "files": files} if own else None
    truth = truth_text(inputs, outputs, _seconds(record.get("time_limit")), checker=checker)
    uid = f"codeforces/{record.get('id') or where}"
    return CodeProblem(uid, "\n\n".join(parts), truth, "code_tests", "open-r1/codeforces", where)


def _seconds(value: Any) -> float | None:
    """A limit as a number, or as TACO writes it: `2.0 seconds`."""
    if isinstance(value, str):
        found = _SECONDS.fullmatch(value)
        return float(found[1]) if found else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def _first(record: Mapping[str, Any]) -> str:
    """The first of APPS's or TACO's solutions, which are a list as JSON text."""
    try:
        found = json.loads(record["solutions"]) if isinstance(record.get("solutions"), str) else []
    except (ValueError, RecursionError):
        return ""
    return str(found[0]) if isinstance(found, list) and found else ""
