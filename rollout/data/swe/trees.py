"""Source trees to read files of: commits of git repositories. Nothing is checked out.

Content is text, with surrogates for what is not UTF-8. Repositories may come from anybody: git is started without hooks
and with a deadline, and a file has a bound.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairbox.errors import FairboxError
from fairbox.git import GitError, git

_MOST_BYTES = 16 << 20
"""Largest size of one file; sources of Python have at most some hundred thousand bytes."""


class TreeError(FairboxError):
    """A tree can't be read. The text starts with its name."""


class ApplyError(TreeError):
    """A patch doesn't fit a tree."""


class GitTree:
    """A tree of a repository at hand, bare or not. `objects` names where git finds it, if not in the repository."""

    def __init__(
        self, repository: Path, name: str, objects: Mapping[str, str] | None = None, *, moved: bool = False
    ) -> None:
        self.moved = moved
        """True if a patch made it that fits at other lines than those that it names."""
        self.name = f"{repository} at {name[:12]}"
        self._repository = repository
        self._tree = name
        self._objects = objects

    def read(self, path: str) -> str | None:
        """The content of a file; None if there is none. Raises TreeError."""
        wanted = f"{self._tree}:{path}\0".encode("utf-8", "surrogateescape")
        answer = run_git(self._repository, "cat-file", "--batch", "-z", text=wanted, env=self._objects)
        head, _, content = answer.partition(b"\n")
        words = head.rsplit(b" ", 2)
        if words[-1] in (b"missing", b"ambiguous") or len(words) < 3 or words[1] != b"blob":
            return None
        if int(words[2]) > _MOST_BYTES:
            raise TreeError(f"{self.name}: {path} has more than {_MOST_BYTES >> 20} MiB")
        return _text(content[:-1])

    @contextlib.contextmanager
    def patched(self, patch: str) -> Iterator[GitTree]:
        """The tree with a patch applied as git does, be it at other lines. Raises ApplyError and TreeError.

        What git writes lies outside of the repository, and is gone when the block ends.
        """
        at = ("rev-parse", "--path-format=absolute", "--git-path", "objects")
        objects = run_git(self._repository, *at).decode("utf-8", "surrogateescape").rstrip("\n")
        with tempfile.TemporaryDirectory(prefix="fairbox-patch-") as folder:
            env = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
            index = {**env, "GIT_INDEX_FILE": str(Path(folder, "index"))}
            run_git(self._repository, "read-tree", self._tree, env=index)
            content = (patch if patch.endswith("\n") else patch + "\n").encode("utf-8", "surrogateescape")
            words = ("apply", "--cached", "--verbose", "-")
            try:
                said = git(self._repository, *words, stdin=content, env=index, users=True, with_stderr=True)
            except GitError as error:
                raise ApplyError(f"{self.name}: {error}") from None
            moved = b" succeeded at " in said
            tree = run_git(self._repository, "write-tree", "--missing-ok", env=index).decode().strip()
            yield GitTree(self._repository, tree, env, moved=moved)

    def difference(self, other: GitTree) -> str:
        """The patch that leads from this tree to another one of its repository. Raises TreeError."""
        return diff_text(self._repository, self._tree, other._tree, env=other._objects)


class Clones:
    """A folder with repositories: `OWNER__NAME` or `OWNER/NAME`, each also with `.git` at its end."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise TreeError(f"{folder}: is no folder")
        self._folder = folder
        self.refused: dict[Path, str] = {}
        """Repositories that are there and were not read, with why."""

    def tree(self, repo: str, commit: str | None) -> GitTree | None:
        """The commit, or HEAD if none is named; None if there is no such repository, or it doesn't have the commit."""
        for name in (repo.replace("/", "__"), repo):
            for repository in (self._folder / name, self._folder / f"{name}.git"):
                if not repository.is_dir():
                    continue
                if not repository.resolve().is_relative_to(self._folder.resolve()):
                    self.refused[repository] = f"leads out of the folder, to {repository.resolve()}: move it here"
                    continue
                found = self._commit(repository, commit or "HEAD")
                return None if found is None else GitTree(repository, found)
        return None

    def _commit(self, repository: Path, name: str) -> str | None:
        words = ("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        try:
            return run_git(repository, *words).decode().strip()
        except TreeError as error:
            if "dubious ownership" in str(error):
                allows = f"`git config --global --add safe.directory {repository.resolve()}`"
                self.refused[repository] = f"belongs to another user: {allows} lets git read it"
            elif "Needed a single revision" not in str(error):  # it has no such commit, which is nothing special
                self.refused[repository] = str(error).removeprefix(f"{repository}: ")
            return None


def run_git(repository: Path, *words: str, text: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """Output of a git command. Raises TreeError, also if it takes too long."""
    try:
        return git(repository, *words, stdin=text, env=env, users=True)
    except GitError as error:
        raise TreeError(f"{repository}: {error}") from None


def diff_text(repository: Path, old: str, new: str, *paths: str, env: Mapping[str, str] | None = None) -> str:
    """Output of `git diff` for these files (none: all) between two trees, whatever the configuration. Raises
    TreeError."""
    form = ("--patch", "--full-index", "-M", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=3")
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--submodule=short")
    words = ("--literal-pathspecs", "diff-tree", "-r", *form, *prefixes, "--end-of-options", old, new, "--", *paths)
    return _text(run_git(repository, *words, env=env))


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")
