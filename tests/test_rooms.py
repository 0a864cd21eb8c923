"""The source lies in rooms, one to a noun: small folders, none of which imports another in a circle."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.test_repository import ROOT, sources

PACKAGES = ("executor_service", "fairbox", "limiter", "rollout")
MOST_MODULES = 15
"""Modules of one folder. More than that, and nobody sees at a glance what a folder is about."""


def modules() -> dict[str, Path]:
    """Every module of the packages, by dotted name."""
    found = {}
    for path in sources():
        place = path.relative_to(ROOT)
        if place.parts[0] in PACKAGES:
            found[".".join(place.with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def room(path: Path) -> str:
    """The folder; a module at the top of a package, such as its settings or its facts, is a room of its own."""
    place = path.relative_to(ROOT)
    return str(place if len(place.parts) == 2 else place.parent)


def loaded(node: ast.AST) -> Iterator[ast.AST]:
    """The tree, without what is there for the type checker alone."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not (isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test)):
            yield from loaded(each)


def imported(path: Path, known: dict[str, Path]) -> Iterator[Path]:
    """Modules of ours that are loaded because this one is, sooner or later."""
    for node in loaded(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
        else:
            continue
        for name, module in names:
            if (found := known.get(name) or known.get(module)) is not None:
                yield found


def test_no_circle_of_rooms() -> None:
    """A package's `__init__` shows what lies below it, and so counts as nobody's need of a room."""
    known = modules()
    needs: dict[str, set[str]] = defaultdict(set)
    for path in known.values():
        if path.name != "__init__.py":
            needs[room(path)] |= {room(each) for each in imported(path, known)} - {room(path)}
    assert len(needs) > 60
    TopologicalSorter(needs).prepare()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_class_has_its_name_alone_in_its_package(package: str) -> None:
    """Two of one name are two things that a reader takes for one."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        if name.partition(".")[0] == package:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(name)
    assert not {name: places for name, places in found.items() if len(places) > 1}


@pytest.mark.parametrize("package", ["executor_service", "limiter"])
def test_each_public_name_is_there_when_it_is_asked_for(package: str) -> None:
    module = importlib.import_module(package)
    assert all(getattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'None_such'"):
        module.None_such  # noqa: B018


@pytest.mark.parametrize("module", ["executor_service.model", "executor_service.grading.rules", "limiter.core"])
def test_facts_and_decisions_load_no_grpc(module: str) -> None:
    program = f"import sys, {module}; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_no_folder_has_more_modules_than_one_sees() -> None:
    counts = Counter(path.parent.relative_to(ROOT) for path in modules().values() if path.name != "__init__.py")
    assert not {str(folder): count for folder, count in counts.items() if count > MOST_MODULES}
