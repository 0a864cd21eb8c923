"""Makes tasks of code search from rows of SWE-bench and its like. Each becomes one, or is left out with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollout.data.swe.patch import Patch, PatchError, parse_patch, target_column
from rollout.data.swe.rows import SearchTask, read_changes_column
from rollout.data.swe.trees import ApplyError, Clones, GitTree, TreeError
from rollout.data.swe.truth import Dialect, FileChange, TruthError, truth


class Why(StrEnum):
    """Reason that a row is no task."""

    BAD_ROW = "bad row"
    """A column is missing or has a value of another kind."""
    TWICE = "twice"
    """An earlier row has its instance_id."""
    BLANK = "blank statement"
    """Nothing is asked."""
    BAD_PATCH = "bad patch"
    """The patch can't be read, or changes nothing."""
    NO_PYTHON = "no python file"
    """The patch changes no `.py` file."""
    NO_SOURCE = "no source"
    """The truth is needed, and neither the row has it nor is there a repository to make it of."""
    DOES_NOT_FIT = "patch does not fit"
    """The commit is at hand, but the patch doesn't fit it."""
    NOT_READ = "not read"
    """A repository at hand is damaged."""
    NOT_PARSED = "not parsed"
    """A file can't be parsed, so there is no truth."""


@dataclass(frozen=True, slots=True)
class Left:
    """A row that was left out."""

    where: str
    """File and line, or row."""
    instance_id: str
    """Empty if it has none."""
    why: Why
    problem: str


@dataclass(slots=True)
class Built:
    """Tasks made from the rows, and rows that were left out, in their order."""

    tasks: list[SearchTask] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    made: int = 0
    """Truths that were made of a repository."""
    differs: list[str] = field(default_factory=list)
    """instance_ids whose row had a truth already, and another one than was made; the made one is taken."""


class _LeftOut(Exception):
    def __init__(self, why: Why, problem: str) -> None:
        super().__init__(problem)
        self.why = why


def build(
    records: Iterable[tuple[str, Any]],
    clones: Clones | None = None,
    *,
    dialect: Dialect = Dialect.CODESCOUT,
    use_patch: bool = False,
    need_truth: bool = False,
) -> Built:
    """Tasks of the rows (where, columns). Raises DataError as `records` does; no row ends it.

    `use_patch` is for rows that don't say it themselves. With `need_truth` rows without `file_changes` are left out.
    """
    built = Built()
    seen: set[str] = set()
    for where, record in records:
        instance_id = ""
        try:
            if not isinstance(record, Mapping):
                raise _LeftOut(Why.BAD_ROW, "must be an object")
            instance_id = _text(record, "instance_id")
            if instance_id in seen:
                raise _LeftOut(Why.TWICE, f"{instance_id} is there already")
            seen.add(instance_id)
            built.tasks.append(_task(record, clones, dialect, use_patch, need_truth, built))
        except _LeftOut as left:
            built.left.append(Left(where, instance_id, left.why, str(left)))
    return built


def _task(
    record: Mapping[str, Any],
    clones: Clones | None,
    dialect: Dialect,
    use_patch: bool,
    need_truth: bool,
    built: Built,
) -> SearchTask:
    repo, text = _text(record, "repo"), _text(record, "patch")
    statement = record.get("problem_statement")
    if not isinstance(statement, str) or not statement.strip():
        raise _LeftOut(Why.BLANK, "problem_statement is blank")
    makes_defect = record.get("use_patch", use_patch)
    commit = record.get("base_commit")
    if not isinstance(makes_defect, bool):
        raise _LeftOut(Why.BAD_ROW, f"use_patch must be true or false, but is {str(makes_defect)[:40]!r}")
    if not (commit is None or (isinstance(commit, str) and commit)):
        raise _LeftOut(Why.BAD_ROW, f"base_commit must be a commit or null, but is {str(commit)[:40]!r}")
    patch = _patch(text)
    instance_id = record["instance_id"]
    try:
        given = read_changes_column(record.get("file_changes"))
    except ValueError as error:
        raise _LeftOut(Why.BAD_ROW, str(error)) from None
    changes = given
    if clones is not None and (tree := clones.tree(repo, commit)) is not None:
        changes, patch = _made(text, patch, tree, makes_defect, dialect)
        built.made += 1
    if changes is None and need_truth:
        raise _LeftOut(Why.NO_SOURCE, f"there is none of {repo} at {commit or 'its own state'}")
    if changes is not None and given is not None and not _same(given, changes):
        built.differs.append(instance_id)
    fix = patch.reversed() if makes_defect else patch
    return SearchTask(instance_id, repo, commit, statement, text, makes_defect, target_column(fix), changes)


def _patch(text: str) -> Patch:
    try:
        patch = parse_patch(text)
    except PatchError as error:
        raise _LeftOut(Why.BAD_PATCH, f"patch: {error}") from None
    if not patch.files:
        raise _LeftOut(Why.BAD_PATCH, "patch: has no files")
    if not any(file.searched_path.endswith(".py") for file in patch.files):
        raise _LeftOut(Why.NO_PYTHON, f"patch: changes {patch.files[0].path}, and no .py file")
    return patch


def _made(
    text: str, patch: Patch, tree: GitTree, use_patch: bool, dialect: Dialect
) -> tuple[tuple[FileChange, ...], Patch]:
    """The truth, and the patch with the lines at which it fits. The searched tree is the one with the patch if that
    makes the defect, else the one without."""
    try:
        with tree.patched(text) as patched:
            if patched.moved:
                patch = parse_patch(tree.difference(patched))
            if use_patch:
                return tuple(truth(patch.reversed(), patched.read, tree.read, dialect)), patch
            return tuple(truth(patch, tree.read, patched.read, dialect)), patch
    except ApplyError as error:
        raise _LeftOut(Why.DOES_NOT_FIT, str(error)) from None
    except TreeError as error:
        raise _LeftOut(Why.NOT_READ, str(error)) from None
    except TruthError as error:
        raise _LeftOut(Why.NOT_PARSED, str(error)) from None


def _same(one: tuple[FileChange, ...], other: tuple[FileChange, ...]) -> bool:
    """Says whether they say the same, in whatever order."""

    def sets(changes: tuple[FileChange, ...]) -> dict[str, list[frozenset[str]]]:
        parts = {each.file: each.changes for each in changes}
        return {
            file: [frozenset(names) for names in (each.added_entities, each.added_modules)]
            + [frozenset(names) for names in (each.edited_entities, each.edited_modules)]
            for file, each in parts.items()
        }

    return sets(one) == sets(other)


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _LeftOut(Why.BAD_ROW, f"{key} must be a text that is not empty, but is {str(value)[:40]!r}")
    return value
