"""Reads programming problems, as they are published. A row's columns say what it is; a bad row is named before anything
starts.

Each becomes a `CodeProblem`, whose ground truth is the JSON text that the reward function of its name takes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollout.data.code.contests import apps, code_contests, code_contests_plus, codeforces
from rollout.data.code.functions import humaneval, humaneval_plus, mbpp
from rollout.data.code.generated import generated
from rollout.data.code.livecodebench import livecodebench
from rollout.data.code.problem import CodeProblem, RowFault, UnusableRow
from rollout.data.records import DataError, read_records


def read_code_problems(path: Path, limit: int | None = None) -> list[CodeProblem]:
    """The first `limit` problems of a `.jsonl`, `.jsonl.gz` or `.parquet` file. Raises DataError, also for a file
    without any."""
    problems = [problem_of(record, where) for where, record in itertools.islice(read_records(path), limit)]
    if not problems:
        raise DataError(f"{path}: holds no rows")
    if (unmade := next((problem for problem in problems if problem.recipe), None)) is not None:
        problem = "its tests are yet to be made: `fairbox data code` does that, with an executor"
        raise UnusableRow(RowFault.NO_TESTS, unmade.where, problem)
    return problems


def problem_of(record: Any, where: str) -> CodeProblem:
    """The problem of a row, `where` in its file. Raises UnusableRow."""
    if not isinstance(record, Mapping):
        raise UnusableRow(RowFault.BAD_ROW, where, "must be an object")
    for columns, read in _KINDS:
        if all(column in record for column in columns):
            return read(record, where)
    raise UnusableRow(RowFault.BAD_ROW, where, f"needs one of {'; '.join(', '.join(columns) for columns, _ in _KINDS)}")


def _verl(record: Mapping[str, Any], where: str) -> CodeProblem:
    """A row of verl's: `prompt` (messages), or `extra_info.question`, and `reward_model.ground_truth`."""
    spec = record["reward_model"]
    truth = spec.get("ground_truth") if isinstance(spec, Mapping) else None
    if not isinstance(truth, str):
        truth = json.dumps(truth)
    try:
        parsed = json.loads(truth)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, (dict, list)) or not parsed:
        raise UnusableRow(RowFault.BAD_ROW, where, "reward_model.ground_truth must be JSON with cases")
    extra, prompt = record.get("extra_info"), record.get("prompt")
    given = extra if isinstance(extra, Mapping) else {}
    question = given.get("question")
    if not question and isinstance(prompt, list):
        users = [each.get("content") for each in prompt if isinstance(each, Mapping) and each.get("role") == "user"]
        question = users[-1] if users else None
    if not isinstance(question, str) or not question.strip():
        raise UnusableRow(RowFault.BAD_ROW, where, "needs extra_info.question, or a user message in prompt")
    uid = str(given.get("uid") or record.get("problem_id") or record.get("id") or where)
    completion = isinstance(parsed, dict) and {"prompt", "test", "entry_point"} <= set(parsed)
    reward, source = "humaneval" if completion else "code_tests", str(record.get("data_source") or "apps")
    return CodeProblem(uid, question, truth, reward, source, where, str(given.get("solution") or ""))


_KINDS: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any], str], CodeProblem]], ...] = (
    (("reward_model",), _verl),
    (("generators", "solution"), generated),
    (("entry_point", "plus_input"), humaneval_plus),
    (("entry_point", "test"), humaneval),
    (("test_list",), mbpp),
    (("input_output",), apps),
    (("question_content", "public_test_cases"), livecodebench),
    (("public_tests", "private_tests"), code_contests),
    (("test_cases", "checker"), code_contests_plus),
    (("official_tests",), codeforces),
)
"""Columns of each kind of row, and what reads it; the first that fits does."""
