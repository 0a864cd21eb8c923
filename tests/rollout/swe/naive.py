"""The rules of the truth a second time, to compare with, without anything of `rollout.data.swe`.

git applies the patch, and each rule is a loop over lines: slow and plain."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Truth = dict[str, dict[str, set[str]]]
"""File -> part -> names."""


def naive_truth(patch: str, before: Mapping[str, str], folder: Path, dialect: str) -> Truth:
    """The truth of a patch in the form of git, for files that are modified or added. Writes into `folder`."""
    for path, text in before.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8", newline="")
    command = ["git", "-c", "core.autocrlf=false", "apply", "--unidiff-zero", "-"]
    subprocess.run(command, cwd=folder, input=patch.encode(), check=True, timeout=60, env={"GIT_DIR": "/nowhere"})
    truths: Truth = {}
    for path, (removed, added) in changed_lines(patch).items():
        if path.endswith(".py"):
            after = (folder / path).read_bytes().decode()
            truths[path] = _file_truth(path, before.get(path, ""), after, removed, added, dialect)
    return truths


def changed_lines(patch: str) -> dict[str, tuple[list[int], list[int]]]:
    """File -> numbers of the lines removed from the old one, and of those added in the new one."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    path, old, new, old_left, new_left = "", 0, 0, 0, 0
    for line in patch.split("\n"):
        if old_left or new_left:
            if line.startswith("-"):
                found[path][0].append(old)
            elif line.startswith("+"):
                found[path][1].append(new)
            elif line.startswith("\\"):
                continue
            if not line.startswith("+"):
                old, old_left = old + 1, old_left - 1
            if not line.startswith("-"):
                new, new_left = new + 1, new_left - 1
        elif line.startswith("+++ b/"):
            path = line[6:].split("\t")[0]
            found[path] = ([], [])
        elif match := re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            old, new = int(match[1]), int(match[3])
            old_left, new_left = int(match[2] or 1), int(match[4] or 1)
            old, new = old + (old_left == 0), new + (new_left == 0)
    return found


def _file_truth(
    path: str, before: str, after: str, removed: list[int], added: list[int], dialect: str
) -> dict[str, set[str]]:
    parts: dict[str, set[str]] = {
        part: set() for part in ("added_entities", "added_modules", "edited_entities", "edited_modules")
    }
    sides = (("old", before, removed), ("new", after, added))
    for side, text, numbers in sides:
        for number in numbers:
            name = _owner(text, number)
            if name is None or (name.startswith("class ") and dialect == "locagent"):
                continue
            module = name.removeprefix("class ").split(".")[0]
            known = side == "old" or _exists(before, name)
            module_known = _exists(before, f"class {module}" if name != module else module)
            if not name.startswith("class "):
                parts["edited_entities" if known else "added_entities"].add(f"{path}:{name}")
            if dialect == "locagent":
                module_known = known
            parts["edited_modules" if module_known or side == "old" else "added_modules"].add(f"{path}:{module}")
    if dialect == "codescout":
        parts["added_modules"] -= parts["edited_modules"]
    return parts


@functools.lru_cache(maxsize=4)
def _walk(text: str) -> list[Any]:
    """All nodes, level by level."""
    level: list[Any] = [ast.parse(text)]
    nodes = []
    while level:
        nodes += level
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return nodes


@functools.lru_cache(maxsize=4)
def _names(text: str) -> tuple[list[Any], list[Any]]:
    """Classes, and functions that don't have the name of a method of a class before them."""
    classes, functions, methods = [], [], set()
    for node in _walk(text):
        if isinstance(node, ast.ClassDef):
            classes.append(node)
            methods |= {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in methods:
            functions.append(node)
    return classes, functions


def _spans(node: Any, number: int) -> bool:
    return bool(node.lineno <= number <= node.end_lineno)


def _owner(text: str, number: int) -> str | None:
    line = text.split("\n")[number - 1].strip()
    if line == "" or line[0] == "#":
        return None
    classes, functions = _names(text)
    for node in _walk(text):
        if isinstance(node, ast.Import | ast.ImportFrom) and _spans(node, number):
            return None
    for node in classes:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            length = len(inspect.cleandoc(first.value.value).splitlines())
            if first.lineno <= number < first.lineno + length:
                return None
    for node in classes:
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and _spans(each, number):
                return f"{node.name}.{each.name}"
        if _spans(node, number):
            return f"class {node.name}"
    for node in functions:
        if _spans(node, number):
            name: str = node.name
            return name
    return None


def _exists(text: str, name: str) -> bool:
    classes, functions = _names(text)
    if name.startswith("class "):
        return name[6:] in [node.name for node in classes]
    if "." not in name:
        return name in [node.name for node in functions]
    for node in classes:
        if node.name == name.split(".")[0]:
            return name.split(".")[1] in [each.name for each in node.body if hasattr(each, "args")]
    return False
