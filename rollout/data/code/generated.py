"""Reads problems whose tests are yet to be made: generators print inputs, a validator takes or refuses each, a solution
prints outputs.

A row has `question`, `solution`, `generators` (each a program, perhaps with `runs`, the arguments of each run), perhaps
`validator`, `checker`, `interactor` and `time_limit_s`. Programs are texts (Python) or objects of `code`, `language`
and `files`; they are called as testlib's generators and validators are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from executor_service import InputFile, Limits, Program
from rollout.data.code.problem import CodeProblem, GeneratorRun, RowFault, TestRecipe, UnusableRow, text_of, truth_text

LIMITS = Limits(wall_time_s=60.0, output_bytes=16 << 20)
"""Limits of each run: the most output that an executor keeps by default."""
_KNOWN = ("code", "language", "files")


def generated(record: Mapping[str, Any], where: str) -> CodeProblem:
    """Reads a row. Raises UnusableRow."""
    question = text_of(record, "question", where)
    runs = [
        GeneratorRun(_program(each, f"generators[{index}]", where), tuple(str(words).split()))
        for index, each in enumerate(_list(record["generators"], "generators", where))
        for words in _list(
            each.get("runs", [""]) if isinstance(each, Mapping) else [""], f"generators[{index}].runs", where
        )
    ]
    validator = record.get("validator")
    recipe = TestRecipe(
        tuple(runs),
        _program(record.get("solution"), "solution", where),
        _program(validator, "validator", where) if validator else None,
    )
    given = record.get("solution")
    limit = record.get("time_limit_s")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0):
        raise UnusableRow(RowFault.BAD_ROW, where, f"time_limit_s is {limit!r:.40}, must be a number of seconds")
    truth = truth_text([], [], limit, checker=record.get("checker"), interactor=record.get("interactor"))
    uid, source = str(record.get("id") or where), str(record.get("data_source") or "generated")
    solution = given if isinstance(given, str) else ""
    return CodeProblem(uid, question, truth, "code_tests", source, where, solution, recipe)


def _list(value: Any, name: str, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise UnusableRow(RowFault.BAD_ROW, where, f"{name} must be a list that is not empty")
    return value


def _program(value: Any, name: str, where: str) -> Program:
    given = {"code": value} if isinstance(value, str) else value
    files = given.get("files") or {} if isinstance(given, Mapping) else {}
    good = isinstance(given, Mapping) and isinstance(given.get("code"), str) and given["code"].strip()
    known = {*_KNOWN, *(["runs"] if name.startswith("generators") else [])}
    if not good or set(given) - known or not isinstance(files, Mapping):
        problem = f"{name} must be a program, or an object of {', '.join(_KNOWN)}"
        raise UnusableRow(RowFault.BAD_ROW, where, problem)
    inputs = tuple(InputFile(str(path), str(text).encode("utf-8", "replace")) for path, text in files.items())
    language = str(given.get("language") or "python")
    return Program(code=given["code"], language=language, files=inputs, limits=LIMITS)
