"""What a commit says about itself: whether its message is a task, and which of its files are the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

__all__ = ["clean_message", "is_test", "named_file"]

_TRAILER = re.compile(
    r"(signed-off-by|co-authored-by|reviewed-by|acked-by|tested-by|reported-by|change-id|cc|git-svn-id|pull-request"
    r"|reviewed-on|differential revision|gerrit-\w+|bug-url):.*|\(cherry picked from commit [0-9a-f]+\)",
    re.IGNORECASE,
)
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "testsuite"})


def clean_message(message: str) -> str:
    """A commit message without trailers (who signed, reviewed, where it was merged) and blank lines at its ends."""
    lines = [line.rstrip() for line in message.splitlines()]
    return "\n".join(line for line in lines if not _TRAILER.fullmatch(line.strip())).strip()


def is_test(path: str) -> bool:
    """Whether a Python file is one of tests, by its name or its folders."""
    *folders, name = PurePosixPath(path).parts
    stem = name.removesuffix(".py")
    named = stem.startswith("test_") or stem.endswith("_test") or stem in ("conftest", "test", "tests")
    return named or not _TEST_FOLDERS.isdisjoint(folder.lower() for folder in folders)


def named_file(statement: str, paths: Iterable[str]) -> str | None:
    """The first of the files that a statement names, by its path, its name (`parser.py`) or its module (`pkg.parser`).

    A bare stem (`parser`) is no name of a file: half of all reports have such a word.
    """
    for path in paths:
        parts = PurePosixPath(path.removesuffix(".py")).parts
        if parts[-1] == "__init__":
            names = [path, *_dotted(parts[:-1])]  # every package has a file of that name
        else:
            names = [path, PurePosixPath(path).name, *_dotted(parts)]
        if any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w/]|\.\w)", statement) for name in names):
            return path
    return None


def _dotted(parts: tuple[str, ...]) -> list[str]:
    """Names of the module from any folder on, of two parts at least: `src/pkg/mod` is src.pkg.mod and pkg.mod."""
    return [".".join(parts[first:]) for first in range(len(parts) - 1)]
