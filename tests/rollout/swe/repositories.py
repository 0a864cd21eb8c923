"""Small git repositories for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
_WHEN = {"GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z"}


def git(folder: Path, *words: str) -> str:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), **_WHO, **_WHEN}
    done = subprocess.run(
        ["git", "-C", folder, *words], capture_output=True, check=True, text=True, env=env, timeout=60
    )
    return done.stdout.strip()


def make_repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(folder: Path, message: str, files: Mapping[str, str | None]) -> str:
    """Writes the files (None: removes), commits, and returns the hash."""
    for path, text in files.items():
        if text is None:
            (folder / path).unlink()
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")
