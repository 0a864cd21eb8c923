"""A wheel, an sdist and a git URL each install the same fairbox, and the wheel is enough."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.install.conftest import ROOT, Dist, Environment

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]
MOST_BYTES = 80_000_000
"""Limit on the size of everything that installing fairbox without extras adds to an environment."""
_NOT_OURS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {*archive.namelist()}


def test_the_wheel_has_the_packages_the_protos_and_no_tests(dist: Dist) -> None:
    names = contents(dist.wheel)
    for package in ("fairbox", "limiter", "executor_service", "rollout"):
        assert f"{package}/py.typed" in names
    protos = {str(path.relative_to(ROOT)) for path in (ROOT / "proto").rglob("*.proto")}
    assert protos
    assert protos == {name.partition("/share/fairbox/")[2] for name in names if name.endswith(".proto")}
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "fairbox",
        "fairbox_e2b",
        "fairbox_harbor",
        "fairbox_inspect",
        "fairbox_jupyter",
        "fairbox_verifiers",
        "limiter",
        "executor_service",
        "rollout",
    }


def test_its_description_holds_where_there_are_no_other_files(dist: Dist) -> None:
    with zipfile.ZipFile(dist.wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("METADATA"))
        facts = Parser().parsestr(archive.read(name).decode())
    assert facts["Name"] == "fairbox"
    assert facts["Author"]
    assert facts["Keywords"]
    assert facts["License-Expression"] == "Apache-2.0"
    links = re.findall(r"\]\(([^)]*)\)", str(facts.get_payload()))
    assert all(link.startswith("https://") for link in links), links


def test_an_sdist_and_a_git_url_make_the_same_wheel(dist: Dist, tmp_path: Path) -> None:
    with tarfile.open(dist.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "README.md", "k8s/20-limiter.yaml", "tests/conftest.py", "docs/how-to/install.md"} <= names
    sources = {"sdist": str(dist.sdist)}
    if (ROOT / ".git").exists():
        sources["git"] = f"git+file://{ROOT}"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    for kind, source in sources.items():
        subprocess.run([*pip, "--wheel-dir", tmp_path / kind, source], check=True, timeout=300, capture_output=True)
        (wheel,) = (tmp_path / kind).glob("*.whl")
        if kind == "sdist":  # a clone may have changes that no commit has
            assert contents(wheel) == contents(dist.wheel)
        else:
            assert "rollout/cli/__init__.py" in contents(wheel)


def test_it_is_small(base: Environment) -> None:
    files = [
        path
        for entry in base.site_packages.iterdir()
        if not entry.name.startswith(_NOT_OURS)
        for path in ([entry] if entry.is_file() else entry.rglob("*"))
        if path.is_file()
    ]
    size = sum(path.stat().st_size for path in files)
    assert 0 < size < MOST_BYTES, f"{size / 1e6:.1f} MB in {len(files)} files"


def test_one_command_after_the_installation_runs_a_program(base: Environment, tmp_path: Path) -> None:
    done = base.run("fairbox", "exec", "--up", "-c", "print(1)", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
