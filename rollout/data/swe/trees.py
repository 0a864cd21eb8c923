"""Source trees to read files of: commits of git repositories. Nothing is checked out.

Content is text, with surrogates for what is not UTF-8. Repositories may come from anybody: git is started without hooks
and with a deadline, and a file has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairbox.errors import FairboxError
from fairbox.git import GitError, git

__all__ = ["Clones", "GitTree", "TreeError", "diff_text", "run_git"]

_MOST_BYTES = 16 << 20
"""Of one file; sources of Python have at most some hundred thousand."""


class TreeError(FairboxError):
    """A tree can't be read. The text starts with its name."""


class GitTree:
    """A commit of a repository at hand, bare or not."""

    def __init__(self, repository: Path, commit: str) -> None:
        self.name = f"{repository} at {commit[:12]}"
        self._repository = repository
        self._commit = commit

    def read(self, path: str) -> str | None:
        wanted = f"{self._commit}:{path}\0".encode("utf-8", "surrogateescape")
        answer = run_git(self._repository, "cat-file", "--batch", "-z", text=wanted)
        head, _, content = answer.partition(b"\n")
        words = head.rsplit(b" ", 2)
        if words[-1] in (b"missing", b"ambiguous") or len(words) < 3 or words[1] != b"blob":
            return None
        if int(words[2]) > _MOST_BYTES:
            raise _too_large(self.name, path)
        return _text(content[:-1])


class Clones:
    """A folder with repositories: `OWNER__NAME` or `OWNER/NAME`, each also with `.git` at its end."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise TreeError(f"{folder}: is no folder")
        self._folder = folder

    def tree(self, repo: str, commit: str | None) -> GitTree | None:
        """The commit, or HEAD if none is named; None if there is no such repository, or it doesn't have the commit."""
        for name in (repo.replace("/", "__"), repo):
            for repository in (self._folder / name, self._folder / f"{name}.git"):
                if repository.is_dir() and repository.resolve().is_relative_to(self._folder.resolve()):
                    found = _commit(repository, commit or "HEAD")
                    return None if found is None else GitTree(repository, found)
        return None


def run_git(repository: Path, *words: str, text: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """What a git command writes. Raises TreeError, also when it takes too long."""
    try:
        return git(repository, *words, stdin=text, env=env, users=True)
    except GitError as error:
        raise TreeError(f"{repository}: {error}") from None


def diff_text(repository: Path, old: str, new: str, paths: Sequence[str]) -> str:
    """What `git diff` says of these files between two commits, whatever the configuration. Raises TreeError."""
    form = ("--patch", "--full-index", "-M", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=3")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--submodule=short")
    words = ("--literal-pathspecs", "diff-tree", "-r", *form, *prefixes, "--end-of-options", old, new, "--", *paths)
    return _text(run_git(repository, *words))


def _commit(repository: Path, name: str) -> str | None:
    try:
        return run_git(repository, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    except TreeError:
        return None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _too_large(name: str, path: str) -> TreeError:
    return TreeError(f"{name}: {path} has more than {_MOST_BYTES >> 20} MiB")
