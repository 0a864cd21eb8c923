"""Code of users in the current folder, and packages of others under fairbox's names.

The current folder comes last on Python's path: `env=sums:Sums` finds `sums.py` there, and a `limiter.py` there is not
taken for fairbox's package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import fairbox

_PACKAGES = ("limiter", "executor_service", "rollout")


def find_user_code() -> None:
    """Puts the current folder at the end of Python's path, also if it stands at the beginning."""
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)] + [here]


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
