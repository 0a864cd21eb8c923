"""Packages that come with an extra of fairbox, as `pip install 'fairbox[viewer]'`.

Looking for a package imports nothing, so a command can ask before it starts anything.
"""

from __future__ import annotations

import importlib.util

from fairbox.errors import ConfigError


class MissingExtra(ConfigError):
    """A package is not installed; the text names the extra that brings it."""


def require(what: str, extra: str, *modules: str) -> None:
    """Raises MissingExtra unless every module of `modules` is installed. `what` needs them, in the sentence; `extra`
    brings them, or several with commas."""
    missing = [module for module in modules if not _installed(module)]
    if missing:
        raise MissingExtra(f"{what} needs {' and '.join(missing)}: run `pip install 'fairbox[{extra}]'`")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that holds it
        return False
