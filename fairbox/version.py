"""Which version of fairbox runs, for status calls."""

from __future__ import annotations

import importlib.metadata


def installed_version() -> str:
    """The installed distribution's version; `source` when the packages are used without being installed."""
    try:
        return importlib.metadata.version("fairbox")
    except importlib.metadata.PackageNotFoundError:
        return "source"
