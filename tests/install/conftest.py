"""A wheel and an sdist of this tree, and environments that have the wheel and nothing else of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Python that a newcomer has on Debian, without any package."""


@dataclass(frozen=True)
class Dist:
    """Files for pip."""

    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment of a newcomer."""

    folder: Path

    @property
    def site_packages(self) -> Path:
        """Folder that its packages lie in."""
        return next((self.folder / "lib").glob("python3*")) / "site-packages"

    def run(
        self, *words: str, cwd: Path, stdin: str = "", timeout: float = 300.0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command with this environment first on the PATH, and nothing of the tests' own."""
        return subprocess.run(
            words,
            cwd=cwd,
            env=self.variables | env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @property
    def variables(self) -> dict[str, str]:
        """The process environment of its commands: pip's settings are those of this machine."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
        return kept | {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8"}


def made(folder: Path, python: Path, *wanted: str) -> Environment:
    """A fresh environment with what pip is given."""
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=120)
    folder.chmod(0o755)  # as folders of users are
    environment = Environment(folder)
    pip = environment.run("python", "-m", "pip", "install", "--quiet", *wanted, cwd=folder, timeout=900)
    assert pip.returncode == 0, pip.stderr
    return environment


def interpreter() -> Path:
    """The system's, if it is new enough and can make environments; else the one of the tests."""
    look = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    if SYSTEM_PYTHON.exists() and subprocess.run([SYSTEM_PYTHON, "-c", look], capture_output=True).returncode == 0:
        return SYSTEM_PYTHON
    return Path(sys.executable).resolve()


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Built as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    builder = made(tmp_path_factory.mktemp("builder"), interpreter(), "hatchling>=1.25")
    built = builder.run("python", "-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Dist(wheel, sdist)


@pytest.fixture(scope="session")
def base(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel without extras."""
    return made(tmp_path_factory.mktemp("base"), interpreter(), str(dist.wheel))


def needs(*programs: str) -> None:
    """Skips where one of these is not on the PATH of an Environment."""
    missing = [name for name in programs if shutil.which(name, path="/usr/bin:/bin") is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
