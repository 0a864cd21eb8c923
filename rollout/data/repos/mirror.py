"""One bare repository of the store: fetches commits into it, makes commits of patches, and marks what is whole.

A want is there exactly when its mark is: a reference that is written after everything below its commit was found
present. What has no mark is left over from an end halfway, and is fetched over.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from fairbox.errors import FairboxError
from fairbox.git import GitError, git_async

_MARKS = "refs/fairbox/wants"
_FULL = "refs/fairbox/full"
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOT_THERE = re.compile(r"not our ref ([0-9a-f]{40,64})")
_ONLY_WHOLE = re.compile(r"unadvertised object|does not support (shallow|--depth)", re.IGNORECASE)
"""Errors of servers that give no single commits: old ones, and those that only serve files."""
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--force")
_COMMITS_AT_ONCE = 200
"""Hashes on one command line, and in one request to the server."""
_LEFT_OVER = ("tmp_*", "*.lock")
_IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "fairbox"), ("EMAIL", "fairbox@localhost"), ("DATE", "@946684800 +0000"))
}
"""Fixed, so that equal files give equal commits on every machine."""


class FailureKind(StrEnum):
    """Reason that a state of a repository was not made."""

    SOURCE = "source"
    """The source did not give it in time: not reachable, gone, refused, damaged, slow. Trying again may help."""
    MISSING = "missing"
    """The source has no such commit, or there is no source."""
    PATCH = "patch"
    """The patch does not apply."""


class RepoError(FairboxError):
    """A state of a repository can't be had; `kind` says why in one word, the text in a sentence."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Mirror:
    """The repository at `path`. Only who holds its lock may call anything but `marked`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def marked(self, digest: str) -> str | None:
        """The commit of a want that is there, read without git; None if it is not."""
        with contextlib.suppress(OSError):
            text = (self.path / _MARKS / digest).read_text(encoding="ascii").strip()
            return text if _HASH.fullmatch(text) else None
        return None

    async def open(self) -> None:
        """Makes the repository if there is none, and removes what a killed git has left."""
        self.path.mkdir(parents=True, exist_ok=True)
        for pattern in _LEFT_OVER:
            for path in self.path.rglob(pattern):
                path.unlink(missing_ok=True)
        await git_async(self.path, "init", "--quiet", "--bare", "--template=", "--initial-branch=main")

    async def fetch(self, source: str, commits: Sequence[str]) -> dict[str, RepoError]:
        """Fetches commits that are not there yet; returns those that the source does not have, with the reason.

        Takes single commits if the source gives those, otherwise everything. Raises RepoError if it gave nothing.
        """
        lacking = [commit for commit in commits if not await self._is_whole(commit)]
        missing: dict[str, RepoError] = {}
        while some := lacking[:_COMMITS_AT_ONCE]:
            try:
                await self._fetch(source, "--depth=1", *(f"{each}:refs/fairbox/fetched/{each}" for each in some))
                lacking = lacking[len(some) :]
            except GitError as error:
                if (found := _NOT_THERE.search(str(error))) and found[1] in some:
                    missing[found[1]] = RepoError(FailureKind.MISSING, f"{source} has no commit {found[1]}")
                    lacking.remove(found[1])
                elif _ONLY_WHOLE.search(str(error)):
                    await self._fetch_all(source)
                    break
                else:
                    raise RepoError(FailureKind.SOURCE, f"{source}: {error}") from None
        for commit in lacking:
            if not await self._is_whole(commit):
                text = f"{source} has no commit {commit} on any branch or tag"
                missing[commit] = RepoError(FailureKind.MISSING, text)
        return missing

    async def fetch_head(self, source: str) -> str:
        """Fetches the source's default branch, as it is now, and returns its commit. Raises RepoError."""
        name = f"{_FULL}/HEAD"
        try:
            await self._fetch(source, "--depth=1", f"HEAD:{name}")
        except GitError as error:
            if not _ONLY_WHOLE.search(str(error)):
                raise RepoError(FailureKind.SOURCE, f"{source}: {error}") from None
            await self._fetch_all(source, f"HEAD:{name}")
        return (await git_async(self.path, "rev-parse", "--verify", f"{name}^{{commit}}")).decode().strip()

    async def apply(self, commit: str, patch: str) -> str:
        """Makes a commit without a parent: the files of `commit` with the patch applied. Raises RepoError."""
        index = {"GIT_INDEX_FILE": str(self.path / "tmp_index")}
        await git_async(self.path, "read-tree", commit, env=index)
        text = patch if patch.endswith("\n") else patch + "\n"
        try:
            await git_async(
                self.path, "apply", "--cached", "-", stdin=text.encode("utf-8", "surrogateescape"), env=index
            )
        except GitError as error:
            raise RepoError(FailureKind.PATCH, f"the patch does not apply to {commit[:12]}: {error}") from None
        tree = (await git_async(self.path, "write-tree", env=index)).decode().strip()
        (self.path / "tmp_index").unlink()
        return (await git_async(self.path, "commit-tree", tree, "-m", "workspace", env=_IDENTITY)).decode().strip()

    async def mark(self, digest: str, commit: str) -> None:
        """Says that a want is there, after looking. Raises RepoError if objects are missing."""
        if not await self._is_whole(commit):
            raise RepoError(FailureKind.SOURCE, f"{self.path} is not whole: objects of {commit} are missing")
        await git_async(self.path, "update-ref", f"{_MARKS}/{digest}", commit)

    async def _fetch(self, source: str, *words: str) -> None:
        options = [word for word in words if word.startswith("--")]
        names = [word for word in words if not word.startswith("--")]
        await git_async(self.path, *_FETCH, *options, "--", source, *names, users=True)

    async def _fetch_all(self, source: str, *more: str) -> None:
        try:
            await self._fetch(source, f"+refs/heads/*:{_FULL}/heads/*", f"+refs/tags/*:{_FULL}/tags/*", *more)
        except GitError as error:
            raise RepoError(FailureKind.SOURCE, f"{source}: {error}") from None

    async def _is_whole(self, commit: str) -> bool:
        """Says whether everything below a commit is there."""
        try:
            await git_async(self.path, "rev-list", "--objects", "--quiet", f"{commit}^{{tree}}")
        except GitError:
            return False
        return True
