"""The classes, methods and functions of a Python file, by their lines, as truths about code search name them.

Follows LocAgent's reading of a file, with what is odd in it, because data in use was made that way: decorators are no
part of what they decorate; of nested functions the outermost counts; a line in a class, but in none of its methods, is
the class's even where a nested class has a method there; a function that has the name of a method is missing, if the
method's class comes before it (by depth, then by line).
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

from fairbox.errors import FairboxError

__all__ = ["Outline", "OutlineError", "Owner", "outline"]


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
    """What a line belongs to: a method (`C.m`), a function (`f`), or a class alone (`C`, with `is_class`)."""

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
    """In the same order; nested ones too."""
    skipped: tuple[Span, ...] = ()
    """Imports, and docstrings of classes as long as they are without the blank lines at their ends."""

    def owner(self, line: int) -> Owner | None:
        """What a line belongs to; None for what is outside of classes and functions."""
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
        """Whether there is a class, method or function of that name. Of classes with one name the first counts."""
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
