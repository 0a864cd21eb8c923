"""A row of code search: what is asked, of which repository, and what should be found (docs/how-to/datasets.md)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fairbox.errors import ConfigError
from rollout.data.swe.truth import Changes, FileChange
from rollout.data.whole import write_parquet

T = TypeVar("T")

_PARTS = ("added_entities", "added_modules", "edited_entities", "edited_modules")


@dataclass(frozen=True, slots=True)
class SearchTask:
    """One task."""

    instance_id: str
    repo: str
    """owner/name."""
    base_commit: str | None
    """None: the repository's own state, if a patch makes the defect, or if there is no repository."""
    problem_statement: str
    patch: str
    use_patch: bool
    """The patch makes the defect and is applied to the sources; else it is the fix, and is not."""
    target: str
    """`hunk_targets` of what makes the searched tree good, as text."""
    file_changes: tuple[FileChange, ...] | None
    """None if the truth is not known, because there was no source at hand."""

    def record(self) -> dict[str, Any]:
        """The columns, in their order."""
        return {
            "instance_id": self.instance_id,
            "repo": self.repo,
            "base_commit": self.base_commit,
            "problem_statement": self.problem_statement,
            "patch": self.patch,
            "use_patch": self.use_patch,
            "target": self.target,
            "file_changes": None if self.file_changes is None else changes_column(self.file_changes),
            "prompt": [{"role": "user", "content": self.problem_statement}],
        }


def changes_column(changes: Sequence[FileChange]) -> list[dict[str, Any]]:
    """The column `file_changes`; null for a list that is empty, as data in use has it."""
    return [
        {"file": each.file, "changes": {part: list(getattr(each.changes, part)) or None for part in _PARTS}}
        for each in changes
    ]


def read_changes_column(value: object) -> tuple[FileChange, ...] | None:
    """Reads a column `file_changes`; None for null. Raises ValueError, which says what is wrong.

    Lists may be null or missing: data in use leaves them out if they are empty.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError(f"file_changes must be a list, but is {type(value).__name__}")
    return tuple(_file_change(each, number) for number, each in enumerate(value))


def _file_change(value: object, number: int) -> FileChange:
    if not isinstance(value, Mapping) or not isinstance(value.get("file"), str):
        raise ValueError(f"file_changes[{number}] must have a file")
    changes = value.get("changes") or {}
    if not isinstance(changes, Mapping):
        raise ValueError(f"file_changes[{number}].changes must have lists of names")
    if unknown := set(changes) - set(_PARTS):
        raise ValueError(f"file_changes[{number}].changes.{min(unknown)} is none of {', '.join(_PARTS)}")
    parts: dict[str, tuple[str, ...]] = {}
    for part in _PARTS:
        names = changes.get(part) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"file_changes[{number}].changes.{part} must be a list of names")
        parts[part] = tuple(names)
    return FileChange(value["file"], Changes(**parts))


def split(tasks: Sequence[T], validation: float, seed: int) -> tuple[list[T], list[T]]:
    """(training, validation): the last of the tasks, shuffled by the seed. Raises ConfigError where none would train.

    `validation` is a fraction below 1, else a count.
    """
    count = round(len(tasks) * validation) if validation < 1 else int(validation)
    if count >= len(tasks) and tasks:
        raise ConfigError(f"validation is {validation:g}, which of {len(tasks)} rows leaves none to train on")
    shuffled = list(tasks)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - no secret
    return shuffled[: len(tasks) - count], shuffled[len(tasks) - count :]


def write_search_tasks(path: Path, tasks: Sequence[SearchTask]) -> None:
    """Parquet with one row per task, in their order; the same tasks give the same bytes. Raises DataError."""
    write_parquet(path, [task.record() for task in tasks], schema=_schema)


def _schema(arrow: Any) -> Any:
    names = arrow.list_(arrow.string())
    changes = arrow.struct([(part, names) for part in _PARTS])
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
