"""Without an extra each command ends in one sentence that names it, before it starts anything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairbox.extras import MissingExtra, require

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
IMPORTED_AS = {
    "huggingface_hub": "huggingface_hub",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
}
"""Packages whose modules have another name."""
WITHOUT = """
import sys

absent = {absent!r}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in absent):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
from rollout.cli import main

sys.exit(main({words!r}))
"""


def modules_of(extra: str) -> set[str]:
    names = {re.split(r"[<>=;\[]", each)[0].strip() for each in EXTRAS[extra]}
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


def without(absent: set[str], words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(absent=sorted(absent), words=words)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )


ALL = {module for extra in EXTRAS if extra not in ("dev", "science") for module in modules_of(extra)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("rollout --up", "engine.kind=transformers needs torch and transformers: run `pip install 'fairbox[engine]'`"),
        (
            "rollout engine.kind=sglang engine.urls=[http://127.0.0.1:9]",
            "engine.kind=sglang needs aiohttp and transformers: run `pip install 'fairbox[sglang]'`",
        ),
        (
            "rollout engine.kind=vllm engine.urls=[http://127.0.0.1:9] sampling.temperature=1",
            "engine.kind=vllm needs aiohttp and transformers: run `pip install 'fairbox[vllm]'`",
        ),
        ("train", "training needs torch and transformers: run `pip install 'fairbox[engine,train]'`"),
        ("capture", "fairbox capture needs aiohttp: run `pip install 'fairbox[gateway]'`"),
        ("check-template smollm2", "fairbox check-template needs transformers: run `pip install 'fairbox[engine]'`"),
        ("check-dump dump=x", "fairbox check-dump needs torch and transformers: run `pip install 'fairbox[engine]'`"),
        ("view .", "the viewer needs textual: run `pip install 'fairbox[viewer]'`"),
        ("mcp", "fairbox mcp needs mcp: run `pip install 'fairbox[mcp]'`"),
        (
            "data gsm8k input=rows.parquet out=x.parquet",
            "reading parquet needs pyarrow: run `pip install 'fairbox[engine]'`",
        ),
    ],
)
def test_a_command_without_its_extra_is_one_sentence(words: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").touch()
    (tmp_path / "1.jsonl").touch()
    done = without(ALL, words.split(), tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    assert sentence in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "command",
    ["", "rollout", "up", "exec", "doctor", "check-template", "capture", "view", "check-dump", "mcp"]
    + [f"data {name}" for name in ("gsm8k", "swebench", "repos", "mine")],
)
def test_help_needs_no_extra(command: str, tmp_path: Path) -> None:
    done = without(ALL, [*command.split(), "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage" in done.stdout.lower()


def test_what_is_installed_passes_and_what_is_not_is_named() -> None:
    require("this", "engine", "json", "os.path")
    sentence = r"^this needs no_such and no_such\.module: run `pip install 'fairbox\[a,b\]'`$"
    with pytest.raises(MissingExtra, match=sentence):
        require("this", "a,b", "no_such", "json", "no_such.module")


def test_the_extras_that_sentences_name_bring_what_is_missing() -> None:
    """Every call of `require` whose arguments are written out."""
    found = 0
    for folder in ("fairbox", "limiter", "executor_service", "rollout", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require"):
                    continue
                words = [each.value for each in node.args[1:] if isinstance(each, ast.Constant)]
                if words:
                    extras, *modules = map(str, words)
                    brought = {module for extra in extras.split(",") for module in modules_of(extra)}
                    assert {*modules} <= brought, f"{path}: {extras} does not bring {modules}"
                    found += 1
    assert found > 10


def test_the_extras_of_engines_bring_what_they_need() -> None:
    from rollout.engine_choice import _EXTRAS

    for extra, modules in _EXTRAS.values():
        assert {*modules} <= modules_of(extra)
