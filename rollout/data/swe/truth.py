"""Derives from a patch what a search should have found: files, classes and functions (modules), methods and functions
(entities).

The rules, as the data in use was made:

1. Only `.py` files. Lines of a hunk that are removed are looked up in the file before, added ones in the file after.
2. A line says nothing if it is blank, in an import, a comment of its own, or in the docstring of a class.
3. A line belongs to a method, a function or a class (`Outline.owner`), or to nothing.
4. What a removed line belongs to is edited. What an added line belongs to is edited if it was there before, else added.
5. Modules are the class of a method, or the function itself, and here the dialects differ (`Dialect`).

Every `.py` file that changes is in the truth, with nothing but its name if no line says anything, but for copies:
what was copied is untouched. A file has its name in the tree that is searched: a renamed one its old name. If the
patch makes the defect (SWE-smith), the searched tree is the one after it, and the truth that of the reversed patch: a
method that the defect took away counts as added.

Follows LocAgent's reading of a file, with what is odd in it, because data in use was made that way: decorators are no
part of what they decorate; of nested functions the outermost counts; a line in a class, but in none of its methods, is
the class's even where a nested class has a method there; a function that has the name of a method is missing, if the
method's class comes before it (by depth, then by line).
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fairbox.errors import FairboxError
from rollout.data.swe.patch import FilePatch, Patch


class OutlineError(FairboxError):
    """A file is no Python that this interpreter can parse."""


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Span:
    """A name and its lines, from 1, both ends included."""

    name: str
    first: int
    last: int

    def __contains__(self, line: int) -> bool:
        return self.first <= line <= self.last


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a line: a method (`C.m`), a function (`f`), or a class alone (`C`, with `is_class`)."""

    name: str
    is_class: bool = False

    @property
    def module(self) -> str:
        """The class of a method, else the name itself."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Outline:
    """A parsed file."""

    classes: tuple[tuple[Span, tuple[Span, ...]], ...] = ()
    """Each class with its own methods, by depth, then by line."""
    functions: tuple[Span, ...] = ()
    """Functions in the same order; nested ones too."""
    skipped: tuple[Span, ...] = ()
    """Imports, and docstrings of classes as long as they are without the blank lines at their ends."""

    def owner(self, line: int) -> Owner | None:
        """Owner of a line; None for lines outside of classes and functions."""
        for span, methods in self.classes:
            for method in methods:
                if line in method:
                    return Owner(f"{span.name}.{method.name}")
            if line in span:
                return Owner(span.name, is_class=True)
        return next((Owner(function.name) for function in self.functions if line in function), None)

    def is_skipped(self, line: int) -> bool:
        return any(line in span for span in self.skipped)

    def has(self, owner: Owner) -> bool:
        """Says whether there is a class, method or function of that name. Of classes with one name the first counts."""
        name, _, method = owner.name.partition(".")
        if not owner.is_class and not method:
            return any(function.name == name for function in self.functions)
        methods = next((methods for span, methods in self.classes if span.name == name), None)
        return methods is not None and (owner.is_class or any(each.name == method for each in methods))


def outline(source: str) -> Outline:
    """The outline of a source (surrogates stand for bytes that are not UTF-8). Raises OutlineError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in the strings of others
            tree = ast.parse(source.encode("utf-8", "surrogateescape"))
    except SyntaxError as error:
        raise OutlineError(f"line {error.lineno or 1}: can't be parsed as Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise OutlineError(f"can't be parsed as Python: {error or type(error).__name__}") from None
    classes: list[tuple[Span, tuple[Span, ...]]] = []
    functions: list[Span] = []
    skipped: list[Span] = []
    method_names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = tuple(_span(each) for each in node.body if isinstance(each, _FUNCTIONS))
            classes.append((_span(node), methods))
            method_names.update(method.name for method in methods)
            if docstring := ast.get_docstring(node):
                first = node.body[0].lineno
                skipped.append(Span("", first, first + len(docstring.splitlines()) - 1))
        elif isinstance(node, _FUNCTIONS):
            if node.name not in method_names:
                functions.append(_span(node))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            skipped.append(Span("", node.lineno, node.end_lineno or node.lineno))
    return Outline(tuple(classes), tuple(functions), tuple(skipped))


def _span(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Span:
    return Span(node.name, node.lineno, node.end_lineno or node.lineno)


class TruthError(FairboxError):
    """There is no truth: a file can't be parsed. The text starts with the file."""


class Dialect(StrEnum):
    """Rules for the names of modules, in the data of two projects."""

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
    """Changes of one file."""

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
    """Touched names in the order of the patch: of each hunk first the removed ones, then the added ones."""
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
