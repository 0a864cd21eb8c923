"""Error for a package that fairbox works with, if it is not installed or has another version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fairbox.errors import FairboxError


class MissingPackage(FairboxError, ImportError):
    """A module of `rollout.interop` was imported without the package that it is made for."""


@contextlib.contextmanager
def needs(package: str, version: str, install: str) -> Iterator[None]:
    """Context for the imports of a foreign package: raises MissingPackage if they fail. `version` is one that works."""
    try:
        yield
    except ImportError as error:
        raise MissingPackage(f"this needs {package} {version} ({install}): {error}") from error
