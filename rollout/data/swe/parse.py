"""Reads patches: those of git, and plain ones (`---`, `+++`, `@@`) of diff, one or many, with other text between them.

The lines of a hunk are counted, as its header says, and never looked at otherwise: a removed line `-- x` or an added
`++ x` is no file, and `+@@ -5 +6 @@` no hunk. What can't be meant is an error with its line: a hunk that is cut short,
one before any file, lines of a hunk beyond its counts, a combined diff of a merge.

unidiff and whatthepatch were tried first. unidiff 1.0.1 takes quoted names as they stand, fails at names with spaces,
takes copies for renames and has no lines in its errors; whatthepatch 1.0.7 loses carriage returns and whether a file
ends with a newline, and cuts lines at form feeds.
"""

from __future__ import annotations

import re

from fairbox.errors import FairboxError
from rollout.data.swe.headers import Header, parse_side
from rollout.data.swe.names import unquote
from rollout.data.swe.patch import FilePatch, Hunk, Line, Patch

__all__ = ["PatchError", "parse_patch"]

_HUNK = re.compile(r"@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@(.*)", re.DOTALL)
_LITERAL = re.compile(r"(literal|delta) [0-9]+")
_SIGNATURE = "-- "
"""A mail of git ends with this line and git's version."""
_AFTER_FILE = ("diff ", "From ", "commit ", "-- ")
"""What may follow a file without content: the next file, the next mail or commit, the end of a mail."""
_INDEX = re.compile(r"index ([0-9a-f]{1,64})\.\.([0-9a-f]{1,64})(?: ([0-7]{6}))?")
_SIMILARITY = re.compile(r"(?:dis)?similarity index ([0-9]{1,3})%")
_MODE = re.compile(r"(old mode|new mode|new file mode|deleted file mode) ([0-7]{6})")
_MOVE = re.compile(r"(rename|copy) (from|to) (.+)")


class PatchError(FairboxError):
    """A text is no patch that can be understood. Says the line, counted from 1, and what was expected."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


def parse_patch(text: str) -> Patch:
    """The files of a patch. Raises PatchError; a text without any file, which an empty one is too, has no files."""
    return _Parser(text).parse()


class _Parser:
    """Goes through the lines once."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()  # what follows the last newline
        self._at = 0
        self._converted = False  # this file's headers end with carriage returns, so each line has got one
        self._files: list[FilePatch] = []

    def parse(self) -> Patch:
        in_hunks = False
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git "):
                self._git_file()
                in_hunks = True
            elif self._is_plain():
                self._plain_file()
                in_hunks = True
            elif line.startswith("@@ "):
                raise self._error("a hunk, but no file before it (`--- ` and `+++ `)")
            elif line.startswith(("diff --cc ", "diff --combined ")):
                raise self._error("a combined diff of a merge; a diff against one parent was expected")
            elif in_hunks and line[:1] in (" ", "+", "-", "\\") and line.rstrip("\r") not in (_SIGNATURE, "--"):
                raise self._error(
                    f"a file or a hunk was expected after the counted lines of a hunk, but is {line[:40]!r}"
                )
            else:
                in_hunks = False
                self._at += 1
        return Patch(tuple(self._files))

    def _plain_file(self) -> None:
        start = self._at
        self._converted = self._lines[start].endswith("\r")
        header = Header(git=None)
        self._sides(header)
        self._finish(header, start)

    def _git_file(self) -> None:
        start = self._at
        self._converted = self._lines[self._at].endswith("\r")
        header = Header(git=self._header_line().removeprefix("diff --git "))
        self._at += 1
        while self._at < len(self._lines) and self._extended(header):
            self._at += 1
        if self._at < len(self._lines):
            line = self._header_line()
            if line.startswith("Binary files ") and line.endswith(" differ"):
                header.binary = True
                self._at += 1
            elif line == "GIT binary patch":
                header.binary = True
                self._skip_binary()
            elif self._is_plain():
                self._sides(header)
            elif line and not line.startswith(_AFTER_FILE):
                raise self._error(f"`--- ` or a line of git's header was expected, but is {line[:60]!r}")
        self._finish(header, start)

    def _extended(self, header: Header) -> bool:
        """Reads a line between `diff --git` and the content; False for one that is none of those."""
        line = self._header_line()
        if found := _INDEX.fullmatch(line):
            header.blobs = (found[1], found[2])
            if found[3] is not None:
                header.modes["old mode"] = header.modes["new mode"] = found[3]
        elif found := _MODE.fullmatch(line):
            header.modes[found[1]] = found[2]
        elif found := _SIMILARITY.fullmatch(line):
            header.similarity = None if line.startswith("dis") else int(found[1])
        elif found := _MOVE.fullmatch(line):
            quoted = unquote(found[3])
            header.moves[found[1], found[2]] = found[3] if quoted is None else quoted[0]
        else:
            return False
        return True

    def _is_plain(self) -> bool:
        """Whether a file begins here with `--- ` and `+++ `."""
        following = self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""
        return self._lines[self._at].startswith("--- ") and following.startswith("+++ ")

    def _sides(self, header: Header) -> None:
        header.old_side = parse_side(self._header_line().removeprefix("--- "))
        self._at += 1
        header.new_side = parse_side(self._header_line().removeprefix("+++ "))
        self._at += 1
        if self._at == len(self._lines) or not self._lines[self._at].startswith("@@ "):
            raise self._error("a hunk (`@@ -1,2 +1,3 @@`) was expected after `+++ `")
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@ "):
            header.hunks.append(self._hunk())

    def _hunk(self) -> Hunk:
        found = _HUNK.fullmatch(self._lines[self._at])
        if found is None:
            raise self._error(f"`@@ -START,COUNT +START,COUNT @@` was expected, but is {self._lines[self._at][:60]!r}")
        old_count, new_count = (1 if found[group] is None else int(found[group]) for group in (2, 4))
        start, lines, left = self._at, list[Line](), {"-": old_count, "+": new_count}
        self._at += 1
        while left["-"] or left["+"]:
            line = self._content(start, left)
            for side in "-+" if line.mark == " " else line.mark:
                if not left[side]:
                    raise self._error(f"the hunk in line {start + 1} counted fewer lines of the {_SIDES[side]} file")
                left[side] -= 1
            self._at += 1
            lines.append(line if not self._no_newline() else Line(line.mark, line.text[:-1]))
        heading = found[5].removesuffix("\r") if self._converted else found[5]
        return Hunk(int(found[1]), old_count, int(found[3]), new_count, tuple(lines), heading)

    def _content(self, start: int, left: dict[str, int]) -> Line:
        wanted = f"{left['-']} lines of the old and {left['+']} of the new file"
        if self._at == len(self._lines):
            raise self._error(f"the text ends, but the hunk in line {start + 1} still needs {wanted}")
        text = self._lines[self._at].removesuffix("\r") if self._converted else self._lines[self._at]
        if text == "":
            return Line(" ", "\n")  # tools that strip spaces leave nothing of an empty line
        if text[0] not in " +-":
            if text == "\r":
                return Line(" ", "\r\n")
            raise self._error(f"the hunk in line {start + 1} still needs {wanted}, but here is {text[:40]!r}")
        return Line(text[0], text[1:] + "\n")

    def _no_newline(self) -> bool:
        """Whether `\\ No newline at end of file` follows, in whatever language."""
        if self._at < len(self._lines) and self._lines[self._at].startswith("\\ "):
            self._at += 1
            return True
        return False

    def _skip_binary(self) -> None:
        self._at += 1
        while self._at < len(self._lines) and _LITERAL.fullmatch(self._header_line()):
            while self._at < len(self._lines) and self._header_line():
                self._at += 1
            self._at += 1
        self._at = min(self._at, len(self._lines))

    def _finish(self, header: Header, line: int) -> None:
        try:
            self._files.append(header.finish())
        except ValueError as error:
            raise PatchError(line + 1, str(error)) from None

    def _header_line(self) -> str:
        line = self._lines[self._at]
        return line.removesuffix("\r") if self._converted else line

    def _error(self, problem: str) -> PatchError:
        return PatchError(self._at + 1, problem)


_SIDES = {"-": "old", "+": "new"}
