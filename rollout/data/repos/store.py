"""`RepoStore`: a folder of bare repositories that hold the commits that were wanted, each fetched once.

    store = RepoStore(Path("repos"))
    checkout = await store.make(Want("pallets/jinja", "https://github.com/pallets/jinja.git", commit))
    options = {"bash": {"workspace": checkout.workspace()}}

Invariants: a repository has its final name only after everything in it was found whole and is on disk; one process at a
time writes to it (a lock that the system drops with the process); whoever is killed leaves something that the next one
removes. Reading needs no lock. Nothing is ever removed that was whole: deleting a repository's folder is the user's to
do, while nobody prepares it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fairbox.errors import ConfigError
from rollout.cleanup import to_its_end
from rollout.data.repos.failures import FailureKind, RepoError
from rollout.data.repos.git import Git, GitFailed
from rollout.data.repos.mirror import Mirror, marked, source_kind
from rollout.data.repos.room import Room, folder_bytes
from rollout.data.repos.trees import content_hash
from rollout.data.repos.wants import Want

__all__ = ["Checkout", "RepoStore"]

DEFAULT_BYTES = 200 << 30
DEFAULT_TIMEOUT_S = 900.0
_POLL_LOCK_S = 0.2


@dataclass(frozen=True, slots=True)
class Checkout:
    """A state of a repository that is there."""

    path: Path
    """The bare repository, absolute."""
    commit: str
    """Full hash."""

    def workspace(self) -> dict[str, Any]:
        """The options `workspace` of a task's tools: what PrepareWorkspace takes."""
        return {"local_path": str(self.path), "commit": self.commit}


@dataclass(eq=False, slots=True)
class _Flight:
    """One want in the making, and those that wait for it."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    ending: Checkout | RepoError | None = None


class RepoStore:
    """See the module. `timeout_s` bounds the work on one repository, with all that is wanted of it; `parallel` how many
    are worked on at once by this process; `most_bytes` what all repositories may take."""

    def __init__(
        self,
        folder: Path | str,
        *,
        parallel: int = 8,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        most_bytes: int = DEFAULT_BYTES,
    ) -> None:
        if parallel < 1:
            raise ConfigError(f"parallel is {parallel}, must be at least 1")
        if not 0 < timeout_s <= 86_400:
            raise ConfigError(f"timeout_s is {timeout_s}, must be above 0 and at most 86400 seconds")
        if most_bytes < 1:
            raise ConfigError(f"most_bytes is {most_bytes}, must be at least 1")
        self.folder = Path(folder).absolute()
        self.parallel = parallel
        self._places = asyncio.Semaphore(parallel)
        self._timeout_s = timeout_s
        self._room = Room(self.folder / "mirrors", most_bytes)
        self._flights: dict[Want, _Flight] = {}
        for name in ("mirrors", "making", "locks"):
            try:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"the store {self.folder} can't be used: {error.strerror}") from None

    def find(self, want: Want) -> Checkout | None:
        """What is there already, without git and without waiting. RepoError when an archive or folder can't be read."""
        mirror = self._mirror(want.repo)
        commit = marked(mirror, want.digest(_content(want)))
        return None if commit is None else Checkout(mirror, commit)

    def bytes(self) -> int:
        """What the finished repositories take."""
        return folder_bytes(self.folder / "mirrors")

    async def ensure(self, repo: str, commit: str | None, source: str, *, patch: str = "") -> Path:
        """The bare repository that has the commit, made now if it is not there. Raises RepoError and FieldErrors.

        With a patch or without a commit the caller needs `make`, which says what the commit is.
        """
        return (await self.make(Want(repo, source, commit, patch))).path

    async def make(self, want: Want) -> Checkout:
        """The state that is wanted, made now if it is not there. Raises RepoError. Calls for the same one share it."""
        while (flight := self._flights.get(want)) is not None:
            await flight.done.wait()
            if flight.ending is not None:
                return _ended(flight.ending)
            # Who made it was cancelled: one of those that waited goes on.
        flight = self._flights[want] = _Flight()
        try:
            flight.ending = (await self.make_all(want.repo, [want]))[want]
        finally:
            del self._flights[want]
            flight.done.set()
        return _ended(flight.ending)

    async def make_all(self, repo: str, wants: Sequence[Want]) -> dict[Want, Checkout | RepoError]:
        """Everything that is wanted of one repository, commits in one fetch. An error for each that can't be had."""
        assert all(want.repo == repo for want in wants)
        found: dict[Want, Checkout | RepoError] = {}
        try:
            async with self._places, asyncio.timeout(self._timeout_s):
                contents = await asyncio.to_thread(_contents, wants)
                await self._work(repo, contents, found)
        except TimeoutError:
            error = RepoError(FailureKind.TIMEOUT, f"{repo}: not done after {self._timeout_s:g} s")
            found |= {want: error for want in wants if want not in found}
        except (OSError, GitFailed) as error:
            failed = RepoError(FailureKind.STORE, f"{repo}: {error}")
            found |= {want: failed for want in wants if want not in found}
        return found

    async def _work(
        self, repo: str, contents: Mapping[Want, str | RepoError], found: dict[Want, Checkout | RepoError]
    ) -> None:
        mirror = self._mirror(repo)

        def look() -> dict[Want, str]:
            """What is not there yet, with its digest."""
            lacking = {}
            for want, content in contents.items():
                if isinstance(content, RepoError):
                    found[want] = content
                elif (commit := marked(mirror, want.digest(content))) is None:
                    lacking[want] = want.digest(content)
                else:
                    found[want] = Checkout(mirror, commit)
            return lacking

        if not look():
            return
        async with self._locked(repo):
            if lacking := look():  # another process may have made some meanwhile
                await self._fill(repo, mirror, lacking, contents, found)

    async def _fill(
        self,
        repo: str,
        mirror: Path,
        lacking: Mapping[Want, str],
        contents: Mapping[Want, str | RepoError],
        found: dict[Want, Checkout | RepoError],
    ) -> None:
        """Holding the lock. A new repository is made elsewhere, and gets its name when it is done."""
        await asyncio.to_thread(_clear, self.folder / "making", _flat(repo))
        fresh = not os.path.isdir(mirror)  # noqa: ASYNC240, PTH112 - one look
        place = self.folder / "making" / f"{_flat(repo)}.{secrets.token_hex(4)}" if fresh else mirror
        with self._room.watching(place) as growth:
            made: dict[Want, str | RepoError] = {}
            if await asyncio.to_thread(growth.problem) is None:
                left = self._room.left()
                at = Mirror(place, Git(), growth.problem, most_bytes=left)
                try:
                    if fresh:
                        await at.create()
                    else:
                        await asyncio.to_thread(at.tidy)
                    made = await _make(at, lacking, contents)
                    if fresh and any(isinstance(each, str) for each in made.values()):
                        await asyncio.to_thread(_publish, place, mirror)
                finally:
                    if fresh:
                        await to_its_end(asyncio.to_thread(_clear, self.folder / "making", _flat(repo)))
            full = RepoError(FailureKind.NO_ROOM, f"{repo}: the store's {self._room.most_bytes} bytes are used up")
            for want in lacking:
                each = made.get(want, full)
                failed = full if growth.full else each
                found[want] = Checkout(mirror, each) if isinstance(each, str) else cast("RepoError", failed)

    @asynccontextmanager
    async def _locked(self, repo: str) -> AsyncIterator[None]:
        """The lock of a repository, also among processes. Asked for again and again, so that waiting can be ended."""
        handle = os.open(self.folder / "locks" / f"{_flat(repo)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(_POLL_LOCK_S)
            yield
        finally:
            os.close(handle)

    def _mirror(self, repo: str) -> Path:
        return self.folder / "mirrors" / f"{repo}.git"


async def _make(
    at: Mirror, lacking: Mapping[Want, str], contents: Mapping[Want, str | RepoError]
) -> dict[Want, str | RepoError]:
    """The commit of each want, marked; or why it is not there."""
    made: dict[Want, str | RepoError] = {}
    bases: dict[Want, str | RepoError] = {}
    for source in dict.fromkeys(want.source for want in lacking):
        of_source = list(dict.fromkeys(want.base for want in lacking if want.source == source))
        bases |= await _bases(at, source, of_source)
    for want, digest in lacking.items():
        base = bases[want.base]
        try:
            if isinstance(base, RepoError):
                raise base
            commit = await at.apply(base, want.patch) if want.patch else base
            await at.mark(digest, commit)
            if want.patch and marked(at.path, base_digest := want.base.digest(str(contents[want]))) is None:
                await at.mark(base_digest, base)
            made[want] = commit
        except RepoError as error:
            made[want] = error
    return made


async def _bases(at: Mirror, source: str, wants: Sequence[Want]) -> dict[Want, str | RepoError]:
    """The commits of one source, without patches."""
    try:
        kind = source_kind(source)
        if kind == "tree":
            if any(want.commit for want in wants):
                raise RepoError(FailureKind.MISSING, f"{source} is an archive or a folder, which has no commits")
            commit = await at.import_tree(Path(source))
            return dict.fromkeys(wants, commit)
        commits = [want.commit for want in wants if want.commit is not None]
        missing = await at.fetch(source, kind, commits) if commits else {}
        head = await at.fetch_head(source, kind) if len(commits) < len(wants) else ""
        return {want: missing.get(want.commit, want.commit) if want.commit else head for want in wants}
    except RepoError as error:
        return dict.fromkeys(wants, error)


def _ended(ending: Checkout | RepoError) -> Checkout:
    if isinstance(ending, RepoError):
        raise RepoError(ending.kind, str(ending))
    return ending


def _content(want: Want) -> str:
    """What an archive or a folder holds; empty for what has commits."""
    if want.commit is not None or "://" in want.source or not Path(want.source).exists():
        return ""  # the default branch of what has gone since is known by its name
    return content_hash(Path(want.source)) if source_kind(want.source) == "tree" else ""


def _contents(wants: Sequence[Want]) -> dict[Want, str | RepoError]:
    by_source: dict[tuple[str, bool], str | RepoError] = {}
    for want in wants:
        key = (want.source, want.commit is None)
        if key not in by_source:
            try:
                by_source[key] = _content(want)
            except RepoError as error:
                by_source[key] = error
    return {want: by_source[want.source, want.commit is None] for want in wants}


def _flat(repo: str) -> str:
    """One file name for a repository; `%` is in none."""
    return repo.replace("/", "%")


def _clear(folder: Path, name: str) -> None:
    """Removes what was made of a repository and is not finished."""
    for path in folder.glob(f"{glob.escape(name)}.????????"):
        shutil.rmtree(path, ignore_errors=True)


def _publish(made: Path, mirror: Path) -> None:
    mirror.parent.mkdir(parents=True, exist_ok=True)
    made.rename(mirror)
    for folder in (mirror, mirror.parent):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
