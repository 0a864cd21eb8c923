"""A patch as plain data: files, hunks, lines. Parsing is `parse`, printing is here, applying is `apply`.

Text, not bytes: what is not UTF-8 is in it as surrogates (`surrogateescape`), so that nothing is lost. Lines end at a
newline and nowhere else; a carriage return before it is part of the line.

Printing gives the form of `git diff`, and `parse_patch(str(patch)) == patch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from rollout.data.swe.names import quote

__all__ = ["NO_NEWLINE", "ChangeKind", "FilePatch", "Hunk", "Line", "Patch"]

NO_NEWLINE = "\\ No newline at end of file"


class ChangeKind(StrEnum):
    """What happens to a file."""

    MODIFIED = "modified"
    """Its content, its mode, or both change."""
    ADDED = "added"
    """It was not there."""
    DELETED = "deleted"
    """It goes."""
    RENAMED = "renamed"
    """It gets another name, and perhaps another content."""
    COPIED = "copied"
    """It stays, and a copy, perhaps changed, gets another name."""


_REVERSED = {ChangeKind.ADDED: ChangeKind.DELETED, ChangeKind.DELETED: ChangeKind.ADDED}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a hunk."""

    mark: str
    """` ` in both versions, `-` in the old one alone, `+` in the new one alone."""
    text: str
    """With its newline; without one only at the end of a file that has none there."""

    def __str__(self) -> str:
        return self.mark + self.text + ("" if self.text.endswith("\n") else f"\n{NO_NEWLINE}\n")


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of lines that changes. Starts count from 1; that of an empty side is the line that it comes after."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[Line, ...]
    heading: str = ""
    """What follows the second `@@`: a space and the function that the hunk lies in, as the tool guessed it."""

    def __str__(self) -> str:
        old, new = _range(self.old_start, self.old_count), _range(self.new_start, self.new_count)
        return f"@@ -{old} +{new} @@{self.heading}\n" + "".join(map(str, self.lines))

    def reversed(self) -> Self:
        """The hunk that undoes it: removed lines before added ones, as tools write them."""
        lines: list[Line] = []
        added: list[Line] = []
        for line in self.lines:
            if line.mark == " ":
                lines += [*added, line]
                added = []
            elif line.mark == "-":
                added.append(Line("+", line.text))
            else:
                lines.append(Line("-", line.text))
        return replace(
            self,
            old_start=self.new_start,
            old_count=self.new_count,
            new_start=self.old_start,
            new_count=self.old_count,
            lines=(*lines, *added),
        )


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What a patch does to one file. `path` is the name that it has afterwards, or had if it goes."""

    kind: ChangeKind
    old_path: str | None
    """None for an added file."""
    new_path: str | None
    """None for a deleted file."""
    hunks: tuple[Hunk, ...] = ()
    binary: bool = False
    """The content changes in a way that the patch doesn't show as lines; it can't be applied here."""
    old_mode: str | None = None
    """Six octal digits as git has them (`100644`); None where the patch says none, and of the side that has no file.
    A file that comes or goes has one; equal modes of both sides are said together with the blobs only."""
    new_mode: str | None = None
    old_blob: str | None = None
    """Hash of the content, often abbreviated, where the patch says it."""
    new_blob: str | None = None
    similarity: int | None = None
    """Percent, of a renamed or copied file."""

    @property
    def path(self) -> str:
        path = self.old_path if self.new_path is None else self.new_path
        assert path is not None
        return path

    def reversed(self) -> Self:
        """The change that undoes this one; that of a copied file removes the copy without saying what was in it."""
        kind = _REVERSED.get(self.kind, self.kind)
        old, new = self.new_path, self.old_path
        if kind is ChangeKind.COPIED:
            kind, new = ChangeKind.DELETED, None
        return replace(
            self,
            kind=kind,
            old_path=old,
            new_path=new,
            hunks=() if self.kind is ChangeKind.COPIED else tuple(hunk.reversed() for hunk in self.hunks),
            old_mode=self.new_mode,
            new_mode=None if kind is ChangeKind.DELETED else self.old_mode,
            old_blob=self.new_blob,
            new_blob=self.old_blob,
            similarity=None if kind is ChangeKind.DELETED else self.similarity,
        )

    def __str__(self) -> str:
        old, new = self.old_path or self.path, self.path
        lines = [f"diff --git {quote('a/' + old)} {quote('b/' + new)}", *self._modes()]
        if self.similarity is not None:
            lines.append(f"similarity index {self.similarity}%")
        if self.kind in (ChangeKind.RENAMED, ChangeKind.COPIED):
            verb = "rename" if self.kind is ChangeKind.RENAMED else "copy"
            lines += [f"{verb} from {quote(old)}", f"{verb} to {quote(new)}"]
        if self.old_blob is not None and self.new_blob is not None:
            mode = f" {self.old_mode}" if self.old_mode is not None and self.old_mode == self.new_mode else ""
            lines.append(f"index {self.old_blob}..{self.new_blob}{mode}")
        sources = [_side("a", self.old_path), _side("b", self.new_path)]
        if self.binary:
            lines.append(f"Binary files {sources[0]} and {sources[1]} differ")
        elif self.hunks:
            lines += [f"--- {_tabbed(sources[0])}", f"+++ {_tabbed(sources[1])}"]
        return "".join(line + "\n" for line in lines) + "".join(map(str, self.hunks))

    def _modes(self) -> list[str]:
        if self.kind is ChangeKind.ADDED:
            return [f"new file mode {self.new_mode}"]
        if self.kind is ChangeKind.DELETED:
            return [f"deleted file mode {self.old_mode}"]
        if self.old_mode == self.new_mode:
            return []
        return [f"old mode {self.old_mode}", f"new mode {self.new_mode}"]


@dataclass(frozen=True, slots=True)
class Patch:
    """The files of a patch, in its order."""

    files: tuple[FilePatch, ...] = ()

    def reversed(self) -> Self:
        """The patch that undoes this one."""
        return replace(self, files=tuple(file.reversed() for file in reversed(self.files)))

    def __str__(self) -> str:
        return "".join(map(str, self.files))


def _range(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


def _side(prefix: str, path: str | None) -> str:
    return "/dev/null" if path is None else quote(f"{prefix}/{path}")


def _tabbed(name: str) -> str:
    """Git ends a name that has a space with a tab, so that nobody takes its end for a time."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name
