"""Applies patches in memory. Strictly: a hunk fits at the lines that it names, or the patch doesn't fit.

Nothing is searched for elsewhere, and no context is ignored: what is learned from a patch would else be about another
file than the one at hand.
"""

from __future__ import annotations

from collections.abc import Callable

from fairbox.errors import FairboxError
from rollout.data.swe.patch import ChangeKind, FilePatch, Hunk, Patch

__all__ = ["ApplyError", "apply_file", "apply_patch", "split_lines"]

Read = Callable[[str], str | None]
"""Path -> content of a file, or None where there is none."""


class ApplyError(FairboxError):
    """A patch doesn't fit. Says the file, the hunk and the line."""


def apply_patch(patch: Patch, read: Read) -> dict[str, str | None]:
    """What the files that the patch names are afterwards; None for those that are no more. Raises ApplyError.

    `read` gives the tree before. Files are taken in the order of the patch; what is renamed or copied is taken from the
    tree before, as git means it.
    """
    after: dict[str, str | None] = {}
    moved: list[str] = []
    for file in patch.files:
        if file.kind in (ChangeKind.RENAMED, ChangeKind.COPIED):
            assert file.old_path is not None
            source = read(file.old_path)
        else:
            source = after[file.path] if file.path in after else read(file.path)
        after[file.path] = apply_file(file, source)
        if file.kind is ChangeKind.RENAMED and file.old_path is not None:
            moved.append(file.old_path)
    written = {file.path for file in patch.files}
    return after | {path: None for path in moved if path not in written}


def apply_file(file: FilePatch, source: str | None) -> str | None:
    """The content of one file afterwards; None when it goes. Raises ApplyError."""
    if file.binary:
        raise ApplyError(f"{file.path}: is binary, its content is not in the patch as lines")
    if file.kind is ChangeKind.ADDED:
        if source is not None:
            raise ApplyError(f"{file.path}: is to be added, but is there already")
        source = ""
    if source is None:
        raise ApplyError(f"{file.old_path}: is to be {file.kind}, but is not there")
    lines = split_lines(source)
    result: list[str] = []
    at = 0
    for number, hunk in enumerate(file.hunks, 1):
        start = hunk.old_start if hunk.old_count == 0 else hunk.old_start - 1
        if start < at:
            raise ApplyError(f"{file.path}: hunk {number} begins in line {hunk.old_start}, before the end of another")
        result += lines[at:start]
        at = _apply_hunk(file.path, number, hunk, lines, start, result)
    result += lines[at:]
    content = "".join(result)
    if any(not line.endswith("\n") for line in result[:-1]):
        raise ApplyError(f"{file.path}: a line without newline is not the last one")
    if file.kind is not ChangeKind.DELETED:
        return content
    if content and file.hunks:
        raise ApplyError(f"{file.path}: is to be deleted, but has {len(result)} lines more than the patch")
    return None


def split_lines(text: str) -> list[str]:
    """Lines with their newlines, cut at newlines and nowhere else; the last may have none."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _apply_hunk(path: str, number: int, hunk: Hunk, lines: list[str], at: int, result: list[str]) -> int:
    """Adds the lines of the hunk to `result`; returns the line of the old file that comes after it."""
    if at > len(lines):
        raise ApplyError(f"{path}: hunk {number} begins in line {hunk.old_start}, but there are {len(lines)} lines")
    for line in hunk.lines:
        if line.mark == "+":
            result.append(line.text)
            continue
        if at >= len(lines) or lines[at] != line.text:
            found = repr(lines[at][:80]) if at < len(lines) else "the end of the file"
            raise ApplyError(f"{path}: hunk {number} expects {line.text[:80]!r} in line {at + 1}, but there is {found}")
        if line.mark == " ":
            result.append(line.text)
        at += 1
    return at
