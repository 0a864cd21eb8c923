"""A patch as plain data: what it removes from files and adds to them. The package `unidiff` reads it.

Text, not bytes: what is not UTF-8 is in it as surrogates (`surrogateescape`), so that nothing is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as ReadHunk
from unidiff.patch import PatchedFile, PatchSet

from fairbox.errors import FairboxError

_NOTHING = "/dev/null"
_PREFIX = re.compile(r"^[abciow12]/")
"""Prefixes of names that git writes: a/ and b/, or by `diff.mnemonicPrefix` c/, i/, o/ and w/, or 1/ and 2/."""


class PatchError(FairboxError):
    """A text is no patch."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of lines that changes. Starts count from 1; that of an empty side is the line that it comes after."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    removed: tuple[tuple[int, str], ...]
    """Number in the old file, and text."""
    added: tuple[tuple[int, str], ...]
    """Number in the new file, and text."""

    def reversed(self) -> Hunk:
        """The hunk that undoes it."""
        return Hunk(self.new_start, self.new_count, self.old_start, self.old_count, self.added, self.removed)


@dataclass(frozen=True, slots=True)
class FilePatch:
    """Changes of a patch to one file."""

    old_path: str | None
    """None for an added file."""
    new_path: str | None
    """None for a deleted file."""
    hunks: tuple[Hunk, ...] = ()

    @property
    def path(self) -> str:
        """The name afterwards; that of a deleted file, which has none, before."""
        return self.new_path or self.old_path or ""

    @property
    def searched_path(self) -> str:
        """The name in the tree before the patch; that of an added file, which has none there, afterwards."""
        return self.old_path or self.new_path or ""

    def reversed(self) -> FilePatch:
        """The change that undoes this one."""
        return FilePatch(self.new_path, self.old_path, tuple(hunk.reversed() for hunk in self.hunks))


@dataclass(frozen=True, slots=True)
class Patch:
    """The files of a patch, in its order."""

    files: tuple[FilePatch, ...] = ()

    def reversed(self) -> Patch:
        """The patch that undoes this one."""
        return Patch(tuple(file.reversed() for file in reversed(self.files)))


def parse_patch(text: str) -> Patch:
    """Reads a unified diff, of git or plain; a text without files is an empty patch. Raises PatchError."""
    try:
        return Patch(tuple(_file(file) for file in PatchSet(text)))
    except UnidiffParseError as error:
        raise PatchError(str(error).strip()) from None


def _file(file: PatchedFile) -> FilePatch:
    old, new = _path(file.source_file), _path(file.target_file)
    if old is None and new is None:
        raise PatchError("a file was expected in `---` or `+++`, but both are /dev/null")
    return FilePatch(old, new, tuple(map(_hunk, file)))


def _path(name: str) -> str | None:
    return None if name == _NOTHING else _PREFIX.sub("", name, count=1)


def _hunk(hunk: ReadHunk) -> Hunk:
    removed = tuple((line.source_line_no or 0, line.value) for line in hunk if line.is_removed)
    added = tuple((line.target_line_no or 0, line.value) for line in hunk if line.is_added)
    return Hunk(hunk.source_start, hunk.source_length, hunk.target_start, hunk.target_length, removed, added)


def hunk_targets(patch: Patch) -> list[tuple[str, list[int]]]:
    """(path, [old_start, old_count]) of each hunk, in the order of the patch. Files of all kinds, not Python alone.

    Paths are those of the searched tree, so hunks of a deleted file are its own, and those of a renamed file have its
    old name. (`extract_functions_from_patch` of agentic-code-search-oss, which made such columns first, gives the hunks
    of a deleted file to the file before it in the patch, and a renamed file its new name.)
    """
    return [(file.searched_path, [hunk.old_start, hunk.old_count]) for file in patch.files for hunk in file.hunks]


def target_column(patch: Patch) -> str:
    """`hunk_targets` as rows have it: the repr, which `ast.literal_eval` reads."""
    return repr(hunk_targets(patch))
