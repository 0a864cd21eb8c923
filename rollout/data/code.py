"""Reads programming problems: HumanEval, MBPP, and APPS-like rows, as they are published. A bad row is named before
anything starts.

Each becomes a `CodeProblem`, whose ground truth is the JSON text that the reward function of its name takes:

- HumanEval (`task_id`, `prompt`, `entry_point`, `test`): `humaneval`
- MBPP (`task_id`, `text` or `prompt`, `test_list`): `code_asserts`; MBPP+ by its `test`, which has all inputs
- APPS, TACO, PRIME (`question` or `problem`, `input_output`) and verl's rows (`prompt`, `reward_model`): `code_tests`
"""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.data.records import DataError, read_records


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
    """The data's own, if it has one."""


def read_code_problems(path: Path, limit: int | None = None) -> list[CodeProblem]:
    """The first `limit` problems of a `.jsonl`, `.jsonl.gz` or `.parquet` file. Raises DataError, also for a file
    without any."""
    problems = [_problem(record, where) for where, record in itertools.islice(read_records(path), limit)]
    if not problems:
        raise DataError(f"{path}: holds no rows")
    return problems


def _problem(record: Any, where: str) -> CodeProblem:
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: must be an object")
    if "entry_point" in record and "test" in record:
        return _humaneval(record, where)
    if "test_list" in record:
        return _mbpp(record, where)
    if "input_output" in record or "reward_model" in record:
        return _stdio(record, where)
    raise DataError(f"{where}: needs entry_point and test, or test_list, or input_output, or reward_model")


def _humaneval(record: Mapping[str, Any], where: str) -> CodeProblem:
    parts = {name: _text(record, name, where) for name in ("prompt", "test", "entry_point")}
    uid = str(record.get("task_id") or where)
    solution = parts["prompt"] + str(record.get("canonical_solution") or "")
    return CodeProblem(uid, parts["prompt"], json.dumps(parts), "humaneval", "openai/humaneval", where, solution)


def _mbpp(record: Mapping[str, Any], where: str) -> CodeProblem:
    question = _text(record, "text" if "text" in record else "prompt", where)
    tests = record["test_list"]
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) and test.strip() for test in tests):
        raise DataError(f"{where}: test_list must be a list of assertions that is not empty")
    whole = record.get("test")
    truth: dict[str, Any] = {"assert_case": [whole] if isinstance(whole, str) and whole.strip() else tests}
    setup = record.get("test_setup_code") or "\n".join(record.get("test_imports") or ())
    if named := _named_as_builtins(str(record.get("code") or ""), "\n".join(truth["assert_case"])):
        setup = "\n".join(filter(None, [setup, f"from solution import {', '.join(named)}"]))
    if setup:
        truth["setup_code"] = setup
    # Names and signatures are nowhere but in the tests: as the data's authors ask, one of them is shown.
    question = f"{question.strip()}\nYour code should pass this test:\n{tests[0]}"
    uid = f"mbpp/{record.get('task_id', where)}"
    return CodeProblem(
        uid, question, json.dumps(truth), "code_asserts", "google/mbpp", where, str(record.get("code") or "")
    )


def _named_as_builtins(solution: str, tests: str) -> list[str]:
    """Functions of the solution that have the name of a built-in one, and are called by tests."""
    try:
        tree = ast.parse(solution)
    except (SyntaxError, ValueError, RecursionError):
        return []
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and hasattr(builtins, node.name)}
    return sorted(name for name in defined if re.search(rf"(?<![\w.]){name}\(", tests))


def _stdio(record: Mapping[str, Any], where: str) -> CodeProblem:
    spec = record.get("reward_model")
    truth = spec.get("ground_truth") if isinstance(spec, Mapping) else record.get("input_output")
    if not isinstance(truth, str):
        truth = json.dumps(truth)
    try:
        parsed = json.loads(truth)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, (dict, list)) or not parsed:
        raise DataError(f"{where}: input_output (or reward_model.ground_truth) must be JSON with cases")
    prompt = record.get("prompt")
    if isinstance(prompt, list):
        users = [each.get("content") for each in prompt if isinstance(each, Mapping) and each.get("role") == "user"]
        question = users[-1] if users and isinstance(users[-1], str) else ""
    else:
        question = str(record.get("question") or record.get("problem") or prompt or "")
    if not question.strip():
        raise DataError(f"{where}: needs question, problem, or a user message in prompt")
    uid = str(record.get("problem_id") or record.get("id") or where)
    return CodeProblem(uid, question, truth, "code_tests", str(record.get("data_source") or "apps"), where)


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {key} must be a text that is not empty, but is {str(value)[:40]!r}")
    return value
