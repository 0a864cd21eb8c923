"""Rules that hold for the repository as a whole: who imports whom, how large things are, what is generated."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIERS = ("limiter", "executor_service", "rollout")
MAY_USE = {"fairbox": (), "limiter": (), "executor_service": ("limiter",), "rollout": ("limiter", "executor_service")}
HEAVY = ("torch", "ray", "sglang", "transformers", "pyarrow")
BINARY = (".png", ".parquet", ".gz")
MAX_FILE_LINES = 500
MAX_CLASS_LINES = 250
MAX_FUNCTION_LINES = 60
CONTINUES = {"Of", "Where", "Whose", "Those", "What", "How", "Whether"}


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, or all files where there is no git (a source archive)."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).exists()]
    return [path for pattern in patterns for path in ROOT.rglob(pattern) if ".venv" not in path.parts]


def sources() -> list[Path]:
    """Python files written by hand."""
    return [path for path in tracked("*.py") if not re.search(r"_pb2(_grpc)?\.py$", path.name)]


@pytest.fixture(scope="module")
def nodes() -> dict[Path, list[ast.AST]]:
    """Nodes of each file of ours, the module itself first. Parsed once, which takes seconds."""
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in sources()}


def imports(path: Path, within: Iterable[ast.AST]) -> Iterator[str]:
    """Absolute names of the modules that a file imports, anywhere in it."""
    for node in within:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module


@pytest.mark.parametrize("package", MAY_USE)
def test_imports_point_one_way(package: str, nodes: dict[Path, list[ast.AST]]) -> None:
    wrong = []
    for path, within in nodes.items():
        relative = path.relative_to(ROOT)
        if relative.parts[0] != package:
            continue
        for name in imports(path, within):
            top = name.partition(".")[0]
            if top == package or top not in TIERS:
                continue
            # Another tier's public surface and stubs, never a module below them.
            if top not in MAY_USE[package] or not re.fullmatch(rf"{top}(\.v1(\.\w+)?)?", name):
                wrong.append(f"{relative} imports {name}")
    assert not wrong


@pytest.mark.parametrize("module", ["limiter", "executor_service", "rollout", "rollout.cli"])
def test_importing_a_client_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_files_classes_and_functions_stay_small(nodes: dict[Path, list[ast.AST]]) -> None:
    """Models of tests, which hold everything that can happen to a thing, may be larger classes."""
    large = []
    for path, within in nodes.items():
        text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        if text.count("\n") > MAX_FILE_LINES:
            large.append(f"{place}: {text.count(chr(10))} lines")
        most: dict[type[ast.AST], int] = {ast.FunctionDef: MAX_FUNCTION_LINES, ast.AsyncFunctionDef: MAX_FUNCTION_LINES}
        if place.parts[0] != "tests":
            most[ast.ClassDef] = MAX_CLASS_LINES
        for node in within:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > most.get(type(node), lines):
                    large.append(f"{place}:{node.lineno} {node.name}: {lines} lines")
    assert not large


def test_every_module_says_what_it_is(nodes: dict[Path, list[ast.AST]]) -> None:
    modules = {path: module for path, (module, *_) in nodes.items() if path.stat().st_size}
    assert not [str(path.relative_to(ROOT)) for path, module in modules.items() if not ast.get_docstring(module)]  # type: ignore[arg-type]


def test_docstrings_begin_with_a_verb_or_a_noun(nodes: dict[Path, list[ast.AST]]) -> None:
    """Docstrings, those below attributes included, never begin with words that only continue a sentence."""
    wrong = []
    for path, within in nodes.items():
        for node in within:
            body = getattr(node, "body", None)
            for each in body if isinstance(body, list) else ():
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    first = re.match(r"\s*(\w*)", str(each.value.value))
                    if first and first[1] in CONTINUES:
                        wrong.append(f"{path.relative_to(ROOT)}:{each.lineno}")
    assert not wrong


def test_nothing_is_raised_within_except_star(nodes: dict[Path, list[ast.AST]]) -> None:
    """Before Python 3.11.4 it comes out in an ExceptionGroup, so that whoever waits for it does not catch it."""
    wrong = []
    for path, within in nodes.items():
        for node in within:
            if isinstance(node, ast.TryStar):
                raised = [
                    each for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Raise)
                ]
                wrong += [f"{path.relative_to(ROOT)}:{each.lineno}" for each in raised]
    assert not wrong


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    names = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0] for requirement in requirements}
    assert not [name for name in sorted(names) if f"`{name}`" not in reasons]


def test_every_pinned_version_is_exact() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if line and not re.fullmatch(r"#.*|[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line)]


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    private = re.compile(r"/(?:home|Users)/[\w.-]+/" + (f"|{re.escape(str(ROOT))}" if len(ROOT.parts) > 2 else ""))
    told = []
    for path in tracked():
        if path.suffix in BINARY:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := private.search(line):
                told.append(f"{path.relative_to(ROOT)}:{number} {match[0]}")
    assert not told


def test_every_test_that_the_page_on_security_names_exists() -> None:
    page, missing, file = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8"), [], ""
    for named, test, case in re.findall(r"`(?:([\w/]+)::)?(test_\w+)(?:\[(\w+)\])?`", page):
        file = named or file  # several of one file follow each other
        if f"`{test}`" in page and not named and list((ROOT / "tests").rglob(f"{test}.py")):
            continue  # a file by itself
        texts = [
            path.read_text(encoding="utf-8")
            for path in (ROOT / "tests").rglob(f"{file.rpartition('/')[2]}.py")
            if path.with_suffix("").as_posix().endswith(f"/{file}")
        ]
        if not any(re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE) and case in text for text in texts):
            missing.append(f"{file}::{test}")
    assert not missing


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/architecture.md"])
def test_every_file_that_a_map_names_exists(page: str) -> None:
    """Pages shorten a path to its end."""
    there = [f"/{path.relative_to(ROOT).as_posix()}" for path in tracked()]
    named = re.findall(r"`([\w/.-]+\.(?:py|proto|md|Containerfile))", (ROOT / page).read_text(encoding="utf-8"))
    made_up = {"rollout/tools/NAME.py"}
    assert len(named) > 30
    assert not [name for name in named if name not in made_up and not any(path.endswith(f"/{name}") for path in there)]


def test_text_ends_its_lines_plainly() -> None:
    wrong = []
    for path in tracked():
        text = path.read_bytes()
        if path.suffix in BINARY or not text:
            continue
        if b"\r" in text or not text.endswith(b"\n") or re.search(rb"[ \t]\n", text):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


@pytest.mark.skipif(shutil.which("npx") is None, reason="buf comes through npx, which is not installed")
def test_protos_pass_buf() -> None:
    makefile = (ROOT / "Makefile").read_text()
    version = re.search(r"^BUF := (\S+)$", makefile, re.MULTILINE)
    assert version is not None
    done = subprocess.run(["npx", "--yes", version[1], "lint"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def generators() -> Path:
    """An interpreter that has the stub generators: that of `make proto`, which is made where it is not there."""
    done = ROOT / ".venv-proto" / ".done"
    if sys.version_info >= (3, 13) and not done.exists():
        pytest.skip("the stub generators have no wheels for Python 3.13 and newer")
    words = ["make", f"PYTHON={sys.executable}", f"{done.relative_to(ROOT)}"]
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    subprocess.run(words, cwd=ROOT, env=outside, check=True, timeout=400)
    return done.parent / "bin" / "python"


@pytest.mark.timeout(500)
def test_the_committed_stubs_are_those_of_the_protos(generators: Path, tmp_path: Path) -> None:
    env = os.environ | {"PYTHON": str(generators), "OUT": str(tmp_path)}
    subprocess.run(["sh", ROOT / "proto" / "generate.sh"], env=env, check=True, timeout=60)
    fresh = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))
    assert len(fresh) == 14
    assert not [str(name) for name in fresh if (tmp_path / name).read_bytes() != (ROOT / name).read_bytes()]
