"""From the lines before the hunks of a file to its names and what happens to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rollout.data.swe.names import unquote
from rollout.data.swe.patch import ChangeKind, FilePatch, Hunk

__all__ = ["Header", "Side", "parse_side"]

_NOTHING = "/dev/null"
_PLAIN_FILE = "100644"
"""The mode of a file that comes or goes, where a plain diff says none."""
_EPOCH = re.compile(r"(1970-01-01|1969-12-31)[ T]")
"""The time that diff gives a file that is not there, in time zones on both sides of Greenwich."""
_PREFIXES = frozenset("abciow12")
"""What git puts before names: a/ and b/, or by `diff.mnemonicPrefix` c/, i/, o/ and w/, or 1/ and 2/."""


@dataclass(frozen=True, slots=True)
class Side:
    """A name after `---` or `+++`."""

    name: str
    epoch: bool = False
    """Its time is the beginning of time: it may be that there is no file."""


@dataclass(slots=True)
class Header:
    """What was read of a file so far."""

    git: str | None
    """The two names of `diff --git`, as they stand; None for a plain diff."""
    old_side: Side | None = None
    new_side: Side | None = None
    blobs: tuple[str, str] | None = None
    modes: dict[str, str] = field(default_factory=dict)
    moves: dict[tuple[str, str], str] = field(default_factory=dict)
    """(`rename` or `copy`, `from` or `to`) -> the name."""
    similarity: int | None = None
    binary: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    def finish(self) -> FilePatch:
        """The file. ValueError says what is missing or contradicts itself."""
        kind, old, new = self._names()
        modes = self.modes
        if kind is ChangeKind.ADDED:
            old_mode, new_mode = None, modes.get("new file mode", _PLAIN_FILE)
        elif kind is ChangeKind.DELETED:
            old_mode, new_mode = modes.get("deleted file mode", _PLAIN_FILE), None
        else:
            old_mode, new_mode = modes.get("old mode"), modes.get("new mode")
        old_blob, new_blob = self.blobs or (None, None)
        similarity = self.similarity if kind in (ChangeKind.RENAMED, ChangeKind.COPIED) else None
        hunks = tuple(self.hunks)
        return FilePatch(kind, old, new, hunks, self.binary, old_mode, new_mode, old_blob, new_blob, similarity)

    def _names(self) -> tuple[ChangeKind, str | None, str | None]:
        for verb, kind in (("rename", ChangeKind.RENAMED), ("copy", ChangeKind.COPIED)):
            if (verb, "from") in self.moves or (verb, "to") in self.moves:
                if (verb, "from") not in self.moves or (verb, "to") not in self.moves:
                    raise ValueError(f"`{verb} from` and `{verb} to` were expected, but there is only one of them")
                return kind, self.moves[verb, "from"], self.moves[verb, "to"]
        old, new = self._both() if self.git is None else self._of_git(self.git)
        if self._absent("new file mode", self.old_side, old=True):
            return ChangeKind.ADDED, None, new
        if self._absent("deleted file mode", self.new_side, old=False):
            return ChangeKind.DELETED, old, None
        if self.git is None:
            return ChangeKind.MODIFIED, new, new  # a plain diff renames nothing: x.orig is x
        return (ChangeKind.MODIFIED if old == new else ChangeKind.RENAMED), old, new

    def _absent(self, mode: str, side: Side | None, *, old: bool) -> bool:
        if mode in self.modes:
            return True
        if side is None:
            return False
        empty = all((hunk.old_count if old else hunk.new_count) == 0 for hunk in self.hunks)
        return side.name == _NOTHING or (side.epoch and empty)

    def _of_git(self, names: str) -> tuple[str, str]:
        """Both names, of `diff --git` where that is not ambiguous, else of `---` and `+++`."""
        found = _split(names)
        if found is not None:
            return found
        if self.old_side is None or self.new_side is None:
            raise ValueError(f"two names, `a/NAME b/NAME`, were expected after `diff --git`, but is {names[:80]!r}")
        return self._both()

    def _both(self) -> tuple[str, str]:
        assert self.old_side is not None
        assert self.new_side is not None
        old, new = self.old_side.name, self.new_side.name
        if old == _NOTHING and new == _NOTHING:
            raise ValueError("a file was expected in `---` or `+++`, but both are /dev/null")
        if old == _NOTHING:
            return _bare(new), _bare(new)
        if new == _NOTHING:
            return _bare(old), _bare(old)
        return _without_prefixes(old, new)


def parse_side(text: str) -> Side:
    """What stands after `--- ` or `+++ `: a name, quoted or not, and after a tab perhaps a time."""
    quoted = unquote(text)
    name, time = quoted if quoted is not None else (text.partition("\t")[0], text.partition("\t")[2])
    return Side(name, _EPOCH.match(time.strip()) is not None)


def _split(names: str) -> tuple[str, str] | None:
    """The two names after `diff --git`, which nothing sets apart; None unless they are quoted, or the same."""
    quoted = unquote(names)
    if quoted is not None:
        second = unquote(quoted[1][1:])
        pair = (quoted[0], quoted[1][1:] if second is None else second[0])
    elif '"' in names and names.endswith('"') and (second := unquote(names[names.index('"') :])) is not None:
        pair = (names[: names.index('"') - 1], second[0])
    else:
        middle = len(names) // 2
        pair = (names[:middle], names[middle + 1 :])
        if names[middle : middle + 1] != " ":
            return None
    old, new = _without_prefixes(*pair)
    return (old, new) if old == new else None


def _without_prefixes(old: str, new: str) -> tuple[str, str]:
    """Names without their first folder, where they differ there alone (a/ and b/, project-1.0/ and project-1.1/)."""
    old_first, _, old_rest = old.partition("/")
    new_first, _, new_rest = new.partition("/")
    if old_first == new_first or not old_rest or not new_rest:
        return old, new
    if old_rest == new_rest or (old_first in _PREFIXES and new_first in _PREFIXES):
        return old_rest, new_rest
    return old, new


def _bare(name: str) -> str:
    first, _, rest = name.partition("/")
    return rest if rest and first in _PREFIXES else name
