"""Reads the ground truth of a data row: files, modules, entities and lines. Pure.

A row that lacks what a function needs raises NotScored with cause TASK and the column's name; a row whose truth is
empty does not. Values come from parquet or JSON: lists may be null, or arrays.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from executor_service import Cause
from rollout.data.swe import PatchError, hunk_targets, parse_patch
from rollout.rewards.base import NotScored, Sample
from rollout.rewards.localization.answer import MAX_LINE, LineSpan


@dataclass(frozen=True, slots=True)
class Truth:
    """Files of `file_changes`, and their edited modules and entities. Added ones are not asked for."""

    files: frozenset[str]
    modules: frozenset[str]
    entities: frozenset[str]


def changed_truth(sample: Sample) -> Truth:
    """Reads the column `file_changes`. Raises NotScored."""
    files: set[str] = set()
    modules: set[str] = set()
    entities: set[str] = set()
    for change in _changes(sample.row, "file_changes"):
        files.add(change["file"])
        changes = change.get("changes") or {}
        if not isinstance(changes, Mapping):
            raise _bad("file_changes", f"has changes of type {type(changes).__name__}, must be an object")
        modules.update(_texts(changes.get("edited_modules"), "edited_modules"))
        entities.update(_texts(changes.get("edited_entities"), "edited_entities"))
    return Truth(frozenset(files), frozenset(modules), frozenset(entities))


def target_files(sample: Sample) -> frozenset[str]:
    """Files of the column `target`, else of `file_changes`, else of `patch`, else of a ground truth that is JSON.
    Raises NotScored.

    `target` is a list of `(path, [first line, count])`, or its text; in some data it is a copy of `file_changes`.
    """
    if sample.row.get("target") is not None:
        target = _listed(sample.row["target"], "target")
        if all(isinstance(each, Mapping) for each in target):
            return frozenset(change["file"] for change in _changes({"target": target}, "target"))
        return frozenset(path for path, _ in map(_hunk, target))
    if sample.row.get("file_changes") is not None:
        return frozenset(change["file"] for change in _changes(sample.row, "file_changes"))
    if sample.row.get("patch") is not None:
        return frozenset(path for path, _ in _patch_hunks(sample.row))
    try:
        truth = json.loads(sample.ground_truth)
    except (ValueError, RecursionError):
        truth = None
    if not isinstance(truth, dict | list) or not all(isinstance(path, str) for path in truth):
        raise NotScored(Cause.TASK, "the row has no target, file_changes or patch, and its ground truth is no JSON")
    return frozenset(truth)


def target_lines(sample: Sample) -> tuple[LineSpan, ...]:
    """Lines of the column `target`, if it has lines, else of `patch`: those before the change, each hunk's context
    included. Raises NotScored.

    A hunk of no lines stands for the line that it follows.
    """
    hunks = None if sample.row.get("target") is None else _listed(sample.row["target"], "target")
    if hunks is None or any(isinstance(each, Mapping) for each in hunks):  # a copy of file_changes has no lines
        if sample.row.get("patch") is None:
            raise NotScored(Cause.TASK, "the row has neither a target with lines nor a patch")
        hunks = _patch_hunks(sample.row)
    spans = []
    for path, (start, count) in map(_hunk, hunks):
        first = max(1, start)
        spans.append(LineSpan(path, first, first + max(1, count) - 1))
    return tuple(spans)


def _patch_hunks(row: Mapping[str, Any]) -> list[Any]:
    """Hunks as `target` has them. A patch that makes the bug (`use_patch`) is reversed: its undoing is looked for."""
    try:
        patch = parse_patch(row["patch"])
    except (PatchError, TypeError, AttributeError) as error:
        raise _bad("patch", f"can't be read: {error}") from None
    return list(hunk_targets(patch.reversed() if row.get("use_patch") else patch))


def _hunk(each: Any) -> tuple[str, tuple[int, int]]:
    """(path, (first line, count)) of one entry of `target`."""
    try:
        path, (start, count) = each
        start, count = int(start), int(count)
    except (TypeError, ValueError, OverflowError):
        raise _bad("target", f"has {str(each)[:80]!r}, must have (path, [first line, count])") from None
    if not isinstance(path, str) or not (0 <= start <= MAX_LINE and 0 <= count <= MAX_LINE):
        raise _bad("target", f"has {str(each)[:80]!r}, must have (path, [first line, count])")
    return path, (start, count)


def _changes(row: Mapping[str, Any], column: str) -> list[Mapping[str, Any]]:
    """The entries of `file_changes`, each with its file."""
    if row.get(column) is None:
        raise _missing(column)
    changes = _listed(row[column], column)
    for change in changes:
        if not isinstance(change, Mapping) or not isinstance(change.get("file"), str):
            raise _bad(column, f"has {str(change)[:80]!r}, must have objects with a file")
    return changes


def _listed(value: Any, column: str) -> list[Any]:
    """A list, an array, or the text of a Python or JSON list."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)  # of the data, not of a model
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise _bad(column, f"is {value[:80]!r}, must be a list") from None
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes | str):
        return list(value)
    raise _bad(column, f"is of type {type(value).__name__}, must be a list")


def _texts(value: Any, name: str) -> list[str]:
    if value is None:
        return []
    texts = _listed(value, "file_changes")
    if not all(isinstance(text, str) for text in texts):
        raise _bad("file_changes", f"has {name} that are no texts")
    return texts


def _missing(column: str) -> NotScored:
    return NotScored(Cause.TASK, f"the row has no column {column}")


def _bad(column: str, problem: str) -> NotScored:
    return NotScored(Cause.TASK, f"the row's {column} {problem}")
