"""Writes tasks as parquet: the same tasks give the same bytes, and a file is whole or not there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from fairbox.errors import ConfigError
from rollout.data.swe.build import Left
from rollout.data.swe.rows import SearchTask
from rollout.data.whole import write_json_lines, write_parquet

T = TypeVar("T")


def split(rows: Sequence[T], validation: float, seed: int) -> tuple[list[T], list[T]]:
    """(training, validation): the last of the rows, shuffled by the seed. Raises ConfigError where none would train.

    `validation` is a fraction below 1, else a count.
    """
    count = round(len(rows) * validation) if validation < 1 else int(validation)
    if count >= len(rows) and rows:
        raise ConfigError(f"validation is {validation:g}, which of {len(rows)} rows leaves none to train on")
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - no secret
    return shuffled[: len(rows) - count], shuffled[len(rows) - count :]


def write_search_tasks(path: Path, tasks: Sequence[SearchTask]) -> None:
    """Parquet with one row per task, in their order. Raises DataError."""
    write_parquet(path, [task.record() for task in tasks], schema=_schema)


def write_left(path: Path, left: Iterable[Left]) -> None:
    """JSON lines of what was left out. Raises DataError."""
    write_json_lines(path, map(asdict, left))


def _schema(arrow: Any) -> Any:
    names = arrow.list_(arrow.string())
    parts = ("added_entities", "added_modules", "edited_entities", "edited_modules")
    changes = arrow.struct([(part, names) for part in parts])
    message = arrow.struct([("role", arrow.string()), ("content", arrow.string())])
    text = arrow.string()
    return arrow.schema(
        [
            arrow.field("instance_id", text, nullable=False),
            arrow.field("repo", text, nullable=False),
            arrow.field("base_commit", text),
            arrow.field("problem_statement", text, nullable=False),
            arrow.field("patch", text, nullable=False),
            arrow.field("use_patch", arrow.bool_(), nullable=False),
            arrow.field("target", text, nullable=False),
            arrow.field("file_changes", arrow.list_(arrow.struct([("file", text), ("changes", changes)]))),
            arrow.field("prompt", arrow.list_(message), nullable=False),
        ]
    )
