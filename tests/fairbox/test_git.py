"""git is run in the repository that is named and in no other, and no process of it is left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from fairbox.git import GitError, git, git_async
from tests.executor import repositories


def test_a_folder_inside_of_a_repository_is_not_taken_for_it(tmp_path: Path) -> None:
    folder, commit = repositories.project(tmp_path / "project")
    assert git(folder, "rev-parse", f"{commit}^{{commit}}").decode().strip() == commit
    with pytest.raises(GitError, match=r"git rev-parse: .*not a git repository"):
        git(folder / "src", "rev-parse", "HEAD")


def test_variables_of_the_caller_do_not_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = repositories.project(tmp_path / "project")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    for users in (False, True):
        assert git(folder, "rev-parse", "--is-inside-work-tree", users=users) == b"true\n"


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    folder, _ = repositories.project(tmp_path / "project")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GitError, match=r"git hash-object took longer than 0\.2 s"):
        git(folder, "hash-object", str(tmp_path / "pipe"), timeout_s=0.2)


def test_a_git_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git is not installed"):
        git(tmp_path, "version")


async def test_a_cancelled_command_is_killed(tmp_path: Path) -> None:
    folder, _ = repositories.project(tmp_path / "project")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await git_async(folder, "hash-object", str(tmp_path / "pipe"))
    assert not processes(str(tmp_path))


def processes(word: str) -> list[Path]:
    """Processes that have a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if word.encode() in path.read_bytes() else []
    return found
