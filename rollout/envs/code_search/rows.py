"""Rows of code search data as the environment takes them. A bad row is named before anything starts.

Needed are `instance_id`, `problem_statement`, `repo` and `base_commit` (or null); what else a row has is kept for
reward functions, each of which says what it needs (docs/how-to/datasets.md has the columns).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.data.records import LONGEST_STATEMENT, DataError, read_instances, text_column


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One report about one repository."""

    instance_id: str
    columns: Mapping[str, Any]
    """All of the row, the answer included."""
    where: str
    """File and line, for error messages."""

    @property
    def truth(self) -> str:
        """The files that change, as a JSON list, for people who read a dump; empty where the row names none."""
        changes = self.columns.get("file_changes")
        if not isinstance(changes, list):
            return ""
        files = [change.get("file") for change in changes if isinstance(change, Mapping)]
        return json.dumps([file for file in files if isinstance(file, str)])


def read_search_rows(path: Path, limit: int | None = None) -> list[SearchRow]:
    """The first `limit` rows of a `.jsonl` or `.parquet` file; fewer where it has fewer. Raises DataError."""
    return read_instances(path, _row, limit)


def _row(value: Any, where: str) -> SearchRow:
    if not isinstance(value, dict):
        raise DataError(f"{where}: must be an object with instance_id, problem_statement, repo and base_commit")
    text_column(value, "problem_statement", where, LONGEST_STATEMENT)
    return SearchRow(text_column(value, "instance_id", where, LONGEST_STATEMENT), value, where)
