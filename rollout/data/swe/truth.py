"""What a patch says that a search should have found: files, classes and functions (modules), methods and functions
(entities).

The rules, as the data in use was made:

1. Only `.py` files. Lines of a hunk that are removed are looked up in the file before, added ones in the file after.
2. A line says nothing if it is blank, in an import, a comment of its own, or in the docstring of a class.
3. A line belongs to a method, a function or a class (`Outline.owner`), or to nothing.
4. What a removed line belongs to is edited. What an added line belongs to is edited if it was there before, else added.
5. Modules are the class of a method, or the function itself, and here the dialects differ (`Dialect`).

Every `.py` file that changes is in the truth, with nothing but its name where no line says anything, but for copies:
what was copied is untouched. A file has its name in the tree that is searched: a renamed one its old name. Where the
patch makes the defect (SWE-smith), the searched tree is the one after it, and the truth that of the reversed patch: a
method that the defect took away counts as added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fairbox.errors import FairboxError
from rollout.data.swe.outline import Outline, OutlineError, Owner, outline
from rollout.data.swe.patch import FilePatch, Patch

__all__ = ["Changes", "Dialect", "FileChange", "TruthError", "truth"]


class TruthError(FairboxError):
    """There is no truth: a file can't be parsed. The text starts with the file."""


class Dialect(StrEnum):
    """How modules are named, in the data of two projects."""

    LOCAGENT = "locagent"
    """LocAgent and rows made of SWE-Gym: an added method adds its class, even if that was there; lines of a class
    outside of its methods say nothing."""
    CODESCOUT = "codescout"
    """CodeScout's rows of SWE-smith: a class or function that was there is edited, whatever happens in it; lines of a
    class outside of its methods edit the class."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Names as `path:Class.method`, `path:Class` or `path:function`, in the order of the patch, none twice."""

    added_entities: tuple[str, ...] = ()
    added_modules: tuple[str, ...] = ()
    edited_entities: tuple[str, ...] = ()
    edited_modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileChange:
    """What changes in a file."""

    file: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class _Touched:
    """A class, method or function in which a line changes."""

    owner: Owner
    existed: bool


Read = Callable[[str], str | None]
"""Path -> content of a file, or None if there is none."""


def truth(patch: Patch, before: Read, after: Read, dialect: Dialect) -> list[FileChange]:
    """The truth of a patch that makes the searched tree good; `before` gives that tree, `after` the one with the patch.

    Raises TruthError if a file can't be parsed.
    """
    changes = []
    for file in patch.files:
        path = file.searched_path
        if path.endswith(".py"):
            old = _outline(path, None if file.old_path is None else before(file.old_path), "before")
            new = _outline(path, None if file.new_path is None else after(file.new_path), "after")
            changes.append(FileChange(path, _changes(file, _touched(file, old, new), old, dialect)))
    return changes


def _outline(path: str, source: str | None, when: str) -> Outline:
    try:
        return outline(source or "")
    except OutlineError as error:
        raise TruthError(f"{path} ({when} the patch): {error}") from None


def _touched(file: FilePatch, old: Outline, new: Outline) -> list[_Touched]:
    """In the order of the patch: of each hunk first what is removed, then what is added."""
    touched: list[_Touched] = []
    for hunk in file.hunks:
        for number, text in hunk.removed:
            if not _says_nothing(number, text, old) and (owner := old.owner(number)):
                touched.append(_Touched(owner, True))
        for number, text in hunk.added:
            if not _says_nothing(number, text, new) and (owner := new.owner(number)):
                touched.append(_Touched(owner, old.has(owner)))
    return touched


def _says_nothing(number: int, text: str, where: Outline) -> bool:
    stripped = text.strip()
    return not stripped or stripped.startswith("#") or where.is_skipped(number)


def _changes(file: FilePatch, touched: list[_Touched], old: Outline, dialect: Dialect) -> Changes:
    edited: dict[str, None] = {}
    added: dict[str, None] = {}
    edited_modules: dict[str, None] = {}
    added_modules: dict[str, None] = {}
    for each in touched:
        owner = each.owner
        if dialect is Dialect.LOCAGENT:
            if owner.is_class:
                continue
            module_existed = each.existed
        else:
            module_existed = each.existed if owner.is_class else old.has(Owner(owner.module, "." in owner.name))
        if not owner.is_class:
            (edited if each.existed else added)[owner.name] = None
        (edited_modules if module_existed else added_modules)[owner.module] = None
    if dialect is Dialect.CODESCOUT:
        added_modules = {name: None for name in added_modules if name not in edited_modules}

    def named(names: dict[str, None]) -> tuple[str, ...]:
        return tuple(f"{file.searched_path}:{name}" for name in names)

    return Changes(named(added), named(added_modules), named(edited), named(edited_modules))
