"""One bare repository of the store: fetches commits into it, makes commits of archives and patches, and marks what is
whole.

A want is there exactly when its marker is: a reference that is written after everything below its commit has been found
present and is on disk. What is without a marker is left over from an end halfway, and is fetched over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from rollout.data.repos.failures import FailureKind, RepoError
from rollout.data.repos.git import Git, GitFailed
from rollout.data.repos.trees import (
    COMMIT_DATE,
    COMMIT_EMAIL,
    COMMIT_NAME,
    TREE_REF,
    entries,
    import_stream,
    is_archive,
)

__all__ = ["Mirror", "marked", "source_kind"]

_MARKS = "refs/fairbox/wants"
_FULL = "refs/fairbox/full"
_NOT_THERE = re.compile(r"not our ref ([0-9a-f]{40,64})")
_ONLY_WHOLE = re.compile(r"unadvertised object|does not support (shallow|--depth)", re.IGNORECASE)
"""What servers say that give no single commits: old ones, and those that only serve files."""
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--force")
_COMMITS_AT_ONCE = 200
"""Hashes on one command line, and in one request to the server."""
_FEED_BYTES = 1 << 18
_LEFT_OVER = ("tmp_*", "*.lock", "fast_import_crash_*")


def source_kind(source: str) -> str:
    """`remote`, `bundle`, `tree` (archive or folder) or `repository`. RepoError MISSING where nothing is."""
    if "://" in source:
        return "remote"
    path = Path(source)
    if not path.exists():
        raise RepoError(FailureKind.MISSING, f"{source} is not there")
    if path.is_file():
        if is_archive(path):
            return "tree"
        if path.suffix == ".bundle":
            return "bundle"
        raise RepoError(
            FailureKind.UNUSABLE, f"{source} is neither a repository nor a .bundle, .tar, .tar.gz or .zip file"
        )
    bare = (path / "HEAD").is_file() and (path / "objects").is_dir()
    worked_in = (path / ".git").is_file() or (path / ".git" / "HEAD").is_file()
    return "repository" if bare or worked_in else "tree"


def marked(mirror: Path, digest: str) -> str | None:
    """The commit of a want that is whole in the mirror, read without git; None: it is not there."""
    with contextlib.suppress(OSError):
        text = (mirror / _MARKS / digest).read_text(encoding="ascii").strip()
        return text if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) else None
    return None


class Mirror:
    """The repository at `path`, for whoever holds its lock. `problem` says, while git runs, why it must end."""

    def __init__(self, path: Path, git: Git, problem: Callable[[], str | None], *, most_bytes: int) -> None:
        self.path = path
        self._git = git
        self._problem = problem
        self._most_bytes = most_bytes

    async def create(self) -> None:
        self.path.mkdir(parents=True)
        await self._run("init", "--quiet", "--bare", "--template=", "--initial-branch=main")
        for name in ("HEAD", "config"):
            _sync(self.path / name)

    def tidy(self) -> None:
        """Removes what a killed git has left. Only who holds the lock may, and no git of his runs."""
        for pattern in _LEFT_OVER:
            for path in self.path.rglob(pattern):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()

    async def fetch(self, source: str, kind: str, commits: Sequence[str]) -> dict[str, RepoError]:
        """Fetches commits that are not there yet; those that the source does not have are returned, with the reason.

        Single commits where the source gives those, otherwise everything. RepoError where the source gave nothing.
        """
        lacking = [commit for commit in commits if await self._lost(commit)]
        missing: dict[str, RepoError] = {}
        whole = kind == "bundle"
        while lacking and not whole:
            some = lacking[:_COMMITS_AT_ONCE]
            try:
                await self._fetch(source, "--depth=1", *(f"{commit}:refs/fairbox/fetched/{commit}" for commit in some))
                lacking = lacking[len(some) :]
            except GitFailed as error:
                if (found := _NOT_THERE.search(str(error))) and found[1] in some:
                    missing[found[1]] = RepoError(FailureKind.MISSING, f"{source} has no commit {found[1]}")
                    lacking.remove(found[1])
                elif _ONLY_WHOLE.search(str(error)):
                    whole = True
                else:
                    raise RepoError(FailureKind.SOURCE, f"{source}: {error}") from None
        if lacking:
            await self._fetch_all(source)
        for commit in lacking:
            if await self._lost(commit):
                missing[commit] = RepoError(
                    FailureKind.MISSING, f"{source} has no commit {commit} on any branch or tag"
                )
        return missing

    async def fetch_head(self, source: str, kind: str) -> str:
        """The source's default branch, as it is now."""
        name = f"{_FULL}/HEAD"
        depth = () if kind == "bundle" else ("--depth=1",)
        try:
            await self._fetch(source, *depth, f"HEAD:{name}")
        except GitFailed as error:
            if not _ONLY_WHOLE.search(str(error)):
                raise RepoError(FailureKind.SOURCE, f"{source}: {error}") from None
            await self._fetch_all(source, f"HEAD:{name}")
        return await self._resolve(name)

    async def import_tree(self, source: Path) -> str:
        """The commit of an archive or a folder."""
        stream = _fed(import_stream(entries(source, most_bytes=self._most_bytes)))
        try:
            await self._run("fast-import", "--quiet", "--done", "--force", "--date-format=raw", stdin=stream)
        except GitFailed as error:
            raise RepoError(FailureKind.UNUSABLE, f"{source}: {error}") from None
        return await self._resolve(TREE_REF)

    async def apply(self, commit: str, patch: str) -> str:
        """A commit without a parent: the files of `commit` with the patch applied."""
        index = {"GIT_INDEX_FILE": str(self.path / "tmp_index")}
        (self.path / "tmp_index").unlink(missing_ok=True)
        try:
            await self._run("read-tree", commit, env=index)
            text = patch if patch.endswith("\n") else patch + "\n"
            try:
                words = ("apply", "--cached", "--whitespace=nowarn", "-")
                await self._run(*words, stdin=text.encode("utf-8", "surrogateescape"), env=index)
            except GitFailed as error:
                raise RepoError(FailureKind.PATCH, f"the patch does not apply to {commit[:12]}: {error}") from None
            tree = (await self._run("write-tree", env=index)).decode().strip()
        finally:
            (self.path / "tmp_index").unlink(missing_ok=True)
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY}
        return (await self._run("commit-tree", tree, "-m", "workspace", env=who)).decode().strip()

    async def mark(self, digest: str, commit: str) -> None:
        """Says that a want is whole, after looking. RepoError STORE when objects are missing."""
        if lost := await self._lost(commit):
            raise RepoError(FailureKind.STORE, f"{self.path} is not whole: {lost}")
        await self._run("update-ref", f"{_MARKS}/{digest}", commit)

    async def _fetch(self, source: str, *words: str) -> None:
        options = [word for word in words if word.startswith("--")]
        names = [word for word in words if not word.startswith("--")]
        remote = {"remote": True, "problem": self._problem}
        await self._git.run(self.path, *_FETCH, *options, "--", source, *names, **remote)  # type: ignore[arg-type]

    async def _fetch_all(self, source: str, *more: str) -> None:
        try:
            await self._fetch(source, f"+refs/heads/*:{_FULL}/heads/*", f"+refs/tags/*:{_FULL}/tags/*", *more)
        except GitFailed as error:
            raise RepoError(FailureKind.SOURCE, f"{source}: {error}") from None

    async def _lost(self, commit: str) -> str | None:
        """What is missing below a commit; None: nothing."""
        try:
            listed = await self._run("rev-list", "--objects", "--no-object-names", f"{commit}^{{tree}}")
            found = await self._run("cat-file", "--batch-check=%(objecttype)", stdin=listed)
        except GitFailed as error:
            return str(error)
        lost = sum(line.endswith(b"missing") for line in found.splitlines())
        return f"{lost} objects of {commit} are missing" if lost else None

    async def _resolve(self, name: str) -> str:
        try:
            return (await self._run("rev-parse", "--verify", f"{name}^{{commit}}")).decode().split()[-1]
        except GitFailed as error:
            raise RepoError(FailureKind.SOURCE, f"{name} is no commit: {error}") from None

    async def _run(
        self, *words: str, stdin: bytes | AsyncIterator[bytes] = b"", env: dict[str, str] | None = None
    ) -> bytes:
        return await self._git.run(self.path, *words, stdin=stdin, env=env, problem=self._problem)


_IDENTITY = (("NAME", COMMIT_NAME), ("EMAIL", COMMIT_EMAIL), ("DATE", f"@{COMMIT_DATE}"))


async def _fed(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Made in a thread, some at a time: unpacking takes processor time."""

    def some() -> bytes:
        out = bytearray()
        for piece in pieces:
            out += piece
            if len(out) >= _FEED_BYTES:
                break
        return bytes(out)

    while data := await asyncio.to_thread(some):
        yield data


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
