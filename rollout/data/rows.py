"""Reads word problems: GSM8K's JSONL and parquet, and verl's parquet rows. A bad row is named before anything starts.

GSM8K: `question`, and `answer` with the result after `####`.
verl: `prompt` (messages) or `extra_info.question`, and `reward_model.ground_truth`.
"""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout.data.records import DataError, json_lines, read_records, text_column
from rollout.rewards.gsm8k import extract_answer, parse_number

__all__ = ["DataError", "Row", "read_rows"]

_LONGEST = 16_384
"""Characters of a question; a longer one is no word problem, and no context would hold it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One problem."""

    question: str
    ground_truth: str
    """The result, as the data has it; `parse_number` understands it."""
    data_source: str
    where: str
    """File and line, for error messages."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """All of the row, as the file has it."""


def read_rows(path: Path | None, limit: int | None = None) -> list[Row]:
    """The first `limit` problems of a `.jsonl` or `.parquet` file; None for the built-in ones. Raises DataError.

    Fewer are returned when the file has fewer. Rows beyond `limit` are not looked at.
    """
    if path is None:
        text = importlib.resources.files("rollout.data").joinpath("problems.jsonl").read_text(encoding="utf-8")
        records = json_lines(text.splitlines(), "problems.jsonl")
    else:
        records = read_records(path)
    source = "fairbox/problems" if path is None else "openai/gsm8k"
    rows = [_row(record, where, source) for where, record in itertools.islice(records, limit)]
    if not rows:
        raise DataError(f"{path}: holds no rows")
    return rows


def _row(record: Any, where: str, data_source: str) -> Row:
    if not isinstance(record, dict):
        raise DataError(f"{where}: must be an object with question and answer")
    if "reward_model" in record or "prompt" in record:
        return _verl_row(record, where)
    question = text_column(record, "question", where, _LONGEST)
    answer = text_column(record, "answer", where, _LONGEST)
    if extract_answer(answer) is None:
        raise DataError(f"{where}: answer must have a number after ####, but ends with {answer[-40:]!r}")
    return Row(question, answer.rpartition("####")[2].strip(), data_source, where, record)


def _verl_row(record: dict[str, Any], where: str) -> Row:
    reward_model = record.get("reward_model")
    truth = str(reward_model.get("ground_truth", "")) if isinstance(reward_model, dict) else ""
    if parse_number(truth) is None:
        raise DataError(f"{where}: reward_model.ground_truth must be a number, but is {truth!r}")
    extra = record.get("extra_info")
    if isinstance(extra, dict) and isinstance(extra.get("question"), str):
        question = text_column(extra, "question", where, _LONGEST)
    else:
        prompt = record.get("prompt")
        messages = prompt if isinstance(prompt, list) else []
        users = [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
        if not users:
            raise DataError(f"{where}: needs extra_info.question, or a user message in prompt")
        question = text_column(users[-1], "content", where, _LONGEST)
    return Row(question, truth, str(record.get("data_source") or "openai/gsm8k"), where, record)
