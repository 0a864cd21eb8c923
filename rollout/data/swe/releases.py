"""A task out of two releases of a project: what to search is the old one, what to find is what the new one changed.

Two releases have no message that says what was wrong, so who makes the task says it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rollout.data.swe.commits import is_test
from rollout.data.swe.names import quote
from rollout.data.swe.parse import parse_patch
from rollout.data.swe.rows import SearchTask
from rollout.data.swe.targets import target_column
from rollout.data.swe.trees import ArchiveTree, FolderTree, TreeError, diff_text, run_git
from rollout.data.swe.truth import Dialect, truth

__all__ = ["open_release", "task_of_releases"]


def open_release(path: Path) -> ArchiveTree | FolderTree:
    """A folder, or an archive. Raises TreeError where there is neither."""
    if path.is_dir():
        return FolderTree(path)
    if path.is_file():
        return ArchiveTree(path)
    raise TreeError(f"{path}: is neither a folder nor an archive")


def task_of_releases(old: Path, new: Path, repo: str, statement: str, dialect: Dialect) -> SearchTask:
    """One task: all that changed in Python files that are no tests.

    Raises TreeError where a release can't be read or nothing changed, TruthError where a file can't be parsed.
    """
    trees = [open_release(old), open_release(new)]
    contents = [_python_files(tree) for tree in trees]
    paths = sorted(path for path in contents[0].keys() | contents[1].keys() if _differ(path, contents))
    if not paths:
        raise TreeError(f"{trees[0].name}, {trees[1].name}: no Python file differs that is no test")
    with tempfile.TemporaryDirectory(prefix="fairbox-releases-") as folder:
        repository = Path(folder)
        run_git(repository, "init", "--quiet", "--bare")
        stream = b"".join(_branch(name, files) for name, files in zip(("old", "new"), contents, strict=True))
        run_git(repository, "fast-import", "--quiet", text=stream)
        text = diff_text(repository, "refs/heads/old", "refs/heads/new", paths)
    patch = parse_patch(text)
    instance_id = f"{repo.replace('/', '__')}-{trees[0].name.rpartition('/')[2]}-{trees[1].name.rpartition('/')[2]}"
    changes = tuple(truth(patch, contents[0].get, dialect))
    return SearchTask(instance_id, repo, None, statement, text, False, target_column(patch), changes)


def _python_files(tree: ArchiveTree | FolderTree) -> dict[str, str]:
    files = {}
    for path in tree.paths():
        if path.endswith(".py") and not is_test(path) and (text := tree.read(path)) is not None:
            files[path] = text
    return files


def _differ(path: str, contents: Sequence[dict[str, str]]) -> bool:
    return contents[0].get(path) != contents[1].get(path)


def _branch(name: str, files: dict[str, str]) -> bytes:
    """What fast-import reads to make a commit of these files."""
    lines = [f"commit refs/heads/{name}\ncommitter fairbox <> 0 +0000\ndata 0\n".encode()]
    for path, text in files.items():
        content = text.encode("utf-8", "surrogateescape")
        quoted = quote(path)
        named = quoted if quoted.startswith('"') else f'"{quoted}"'
        lines.append(f"M 100644 inline {named}\ndata {len(content)}\n".encode() + content + b"\n")
    return b"".join(lines)
