"""Code of users in the current folder, and packages of others under fairbox's names.

The current folder comes last on Python's path: `env=sums:Sums` finds `sums.py` there, and a `limiter.py` there is not
taken for fairbox's package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import fairbox

_PACKAGES = ("limiter", "executor_service", "rollout")


def find_user_code() -> None:
    """Puts the current folder at the end of Python's path, also if it stands at the beginning."""
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)] + [here]


class _UserCodeLast:
    """Finds top-level modules in the current folder only if they are nowhere else, whatever puts it first later."""

    def __init__(self, here: str) -> None:
        self._here = here

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as the other entries of Python's path have it; None: Python's own finders look everywhere."""
        if path is not None:
            return None
        return PathFinder.find_spec(name, [entry for entry in sys.path if entry not in ("", self._here)], target)


def find_user_code_in_worker() -> None:
    """The same in a worker of Ray, which puts the driver's folder first once its set-up is over."""
    find_user_code()
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _UserCodeLast(str(Path.cwd())))


def foreign_package(error: ImportError) -> str | None:
    """A sentence about the package of others that `error` comes from, because it has the name of one of fairbox's;
    None if it comes from none."""
    top = (error.name or "").partition(".")[0]
    if top not in _PACKAGES:
        return None
    spec = importlib.util.find_spec(top)
    found = Path(spec.origin) if spec is not None and spec.origin else None
    ours = Path(str(fairbox.__file__)).parents[1]
    if found is None:
        return f"the package {top}, which is fairbox's, is not installed: install fairbox again"
    if found.parents[1] != ours:
        return f"{found} is found as {top!r} in place of fairbox's own package: rename it, or take it off PYTHONPATH"
    others = sorted({*importlib.metadata.packages_distributions().get(top, [])} - {"fairbox"})
    if not others:
        return None
    names = " and ".join(others)
    return f"{names} has put its package {top!r} over fairbox's: `pip uninstall {names}`, then install fairbox again"
