"""The isolation levels that this machine can offer, and each kind of user a server can be, as ways to start one."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor_service.guest.walls import landlock
from tests.executor.servers import MODULE, ROOT, Server, running
from tests.machines.places import NOBODY, Place, folder, places

TOO_LARGE = (
    "torch*",
    "ray*",
    "triton*",
    "nvidia*",
    "transformers*",
    "pyarrow*",
    "wandb*",
    "mypy*",
    "*kubernetes*",
    "llm_*",
)
"""Packages that no executor needs: they are not copied for ordinary users."""


def foreign_python() -> str | None:
    """An interpreter that an ordinary user may start, of the version whose packages we have."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # setpriv keeps its capabilities until it has started the command, so only the command's own child tells the truth.
    again = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', '1'])"
    for python in (sys.executable, shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")):
        if python and subprocess.run([*NOBODY, python, "-c", again], capture_output=True, timeout=30).returncode == 0:
            return python
    return None


def _may_read(folder: str | Path) -> bool:
    """Says whether an ordinary user may enter the folder; a clone in root's home usually can't be entered."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return True
    again = f"import os; os.execvp('ls', ['ls', {str(folder)!r}])"
    words = [*NOBODY, shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable, "-c", again]
    return subprocess.run(words, capture_output=True, timeout=30).returncode == 0


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@functools.cache
def reachable() -> tuple[Path, Path]:
    """Folders of our packages and of the libraries that an ordinary user may read: copies, if those in use may not be
    entered."""
    libraries = Path(sysconfig.get_paths()["purelib"])
    if _may_read(ROOT) and _may_read(libraries):
        return ROOT, libraries
    copies = Path(tempfile.mkdtemp(prefix="fairbox-tests-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    copies.chmod(0o755)
    for tier in ("fairbox", "limiter", "executor_service"):
        shutil.copytree(ROOT / tier, copies / "here" / tier, ignore=shutil.ignore_patterns("__pycache__"))
    skipped = shutil.ignore_patterns(*TOO_LARGE)
    shutil.copytree(libraries, copies / "libraries", copy_function=_link, ignore=skipped, symlinks=True)
    return copies / "here", copies / "libraries"


if os.geteuid() != 0:
    PREFIX: list[str] = []
    PYTHON: str | None = sys.executable
else:
    PREFIX, PYTHON = [*NOBODY], foreign_python() if shutil.which("setpriv") else None


HOME, _LIBRARIES = reachable()
ENV = {"PYTHONPATH": f"{HOME}:{_LIBRARIES}", "PYTHONDONTWRITEBYTECODE": "1"}
"""Environment of a server whose interpreter does not know our packages."""


_GOING_BY = """
from executor_service.guest.walls import landlock
landlock.go_by({version})
from executor_service.__main__ import main
main()
"""


@dataclass(frozen=True)
class Level:
    """An isolation level, and who the server is: `root` or an ordinary `user`."""

    name: str
    who: str
    version: int = landlock.NEWEST
    """Latest version of Landlock that the server uses."""
    place: Place | None = None
    """Place that it is started in, unless simply here."""

    def __str__(self) -> str:
        if self.place is not None:
            return self.place.name
        cut = "" if self.version == landlock.NEWEST else f"-{self.version}"
        return f"{self.name}-{self.who}{cut}"

    @property
    def image(self) -> bool:
        """Says whether its programs run in an image."""
        return False

    @property
    def landlock(self) -> bool:
        return self.name == "landlock"

    @contextlib.contextmanager
    def running(self, *settings: str, env: dict[str, str] | None = None) -> Iterator[Server]:
        """A server at this level, ready."""
        with contextlib.ExitStack() as stack:
            more = [f"isolation={self.name}", f"min_isolation={self.name}"] if self.landlock else []
            whole = self.version == landlock.NEWEST
            module = MODULE if whole else ("-c", _GOING_BY.format(version=self.version))
            if self.place is not None:
                yield stack.enter_context(self._there(self.place, *settings, *more, module=module, env=env or {}))
                return
            if self.landlock:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairbox-scratch-"))
                Path(scratch).chmod(0o777)
                # Nothing is mounted here: programs need an interpreter that their uid may read.
                more += [f"scratch={scratch}", f"python={PYTHON}"]
            if self.who == "root" or os.geteuid() != 0:
                yield stack.enter_context(running(*settings, *more, module=module, env=env))
                return
            assert PYTHON is not None
            more.append("cgroups=none")
            start = partial(running, *settings, *more, prefix=PREFIX, python=PYTHON, module=module, cwd=HOME)
            yield stack.enter_context(start(env=ENV | (env or {})))

    def _there(
        self, place: Place, *settings: str, module: Sequence[str], env: dict[str, str]
    ) -> contextlib.AbstractContextManager[Server]:
        assert PYTHON is not None
        own = ENV | env if place.user or place.container else env
        python = PYTHON if place.user or place.container else sys.executable
        if self.landlock:
            settings = (*settings, f"python={PYTHON}")
        outside = own | ({"CONTAINERS_CONF": str(folder() / "containers.conf")} if place.container else {})
        return running(
            *settings,
            *(["cgroups=none"] if place.user else []),
            prefix=place.prefix(own),
            python=python,
            module=module,
            env=outside,
            cwd=HOME if place.user else ROOT,
        )


VERSIONS = [int(word) for word in os.environ.get("FAIRBOX_TEST_LANDLOCK", "").split()]
"""Versions of Landlock. If there are any, tests of levels cover only `landlock`, limited to each of these versions."""

PLACE = os.environ.get("FAIRBOX_TEST_PLACE", "")
"""If there is one, tests of levels are of it alone: see `tests/machines/places.py`."""


def _levels() -> Iterator[Level]:
    if PLACE:
        place = next(each for each in places() if each.name == PLACE)
        version = place.version or landlock.NEWEST
        yield Level(place.level, "user" if place.user else "root", version, place)
        return
    if VERSIONS:
        for version in filter(lambda each: each <= landlock.abi(), VERSIONS):
            if os.geteuid() == 0 and PYTHON is not None:
                yield Level("landlock", "root", version)
            if PYTHON is not None:
                yield Level("landlock", "user", version)
        return
    for name in ("namespaces", "landlock"):
        if name == "landlock" and not landlock.abi():
            continue
        if os.geteuid() == 0 and not (name == "landlock" and PYTHON is None):
            yield Level(name, "root")
        if PYTHON is not None:
            yield Level(name, "user")
    if PYTHON is not None and landlock.abi():
        yield Level("landlock", "user", 1)


LEVELS = list(_levels())
_GIVEN = bool(VERSIONS or PLACE)
_WHOLE = [level for level in LEVELS if _GIVEN or level.version == landlock.NEWEST]


def _among(chosen: Sequence[Level]) -> list[Any]:
    """All levels as values of a parameter; a run of the suite has those that are chosen."""
    return [
        pytest.param(level, marks=() if _GIVEN or level in chosen else pytest.mark.soak, id=str(level))
        for level in _WHOLE
    ]


EXTREMES = _among(_WHOLE[:1] + _WHOLE[-1:])
"""For what depends little on the level: the strongest and the weakest in every run, the others with `make soak`, and
with `make test-landlock`."""
STRONGEST = _among(_WHOLE[:1])
"""For what does not depend on the level as far as anybody knows."""
