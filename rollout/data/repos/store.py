"""`RepoStore`: a folder of bare repositories that hold the commits that were wanted, each fetched once.

    store = RepoStore(Path("repos"))
    checkout = await store.make(Want("pallets/jinja", "https://github.com/pallets/jinja.git", commit))
    options = {"bash": {"workspace": checkout.workspace()}}

Invariants: a state counts only after it was found whole; one process at a time writes to a repository (a lock that the
system drops with the process). Reading needs no lock. Nothing that was whole is ever removed: deleting a repository's
folder is the user's to do, while nobody prepares it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.errors import ConfigError
from fairbox.git import GitError
from rollout.data.repos.mirror import FailureKind, Mirror, RepoError
from rollout.data.repos.wants import Want

__all__ = ["Checkout", "Progress", "RepoStore", "fetch_all"]

_ATTEMPTS = 3
"""Of each repository, while its source fails."""
_BACKOFF_S = 1.0
"""Wait before the second attempt; twice as long before each later one."""
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


@dataclass(frozen=True, slots=True)
class Progress:
    """A repository whose last attempt has ended."""

    repo: str
    wanted: int
    """States of it that were asked for."""
    failures: tuple[RepoError, ...]
    seconds: float


class RepoStore:
    """See the module. `timeout_s` bounds one attempt at one repository, with all that is wanted of it; `parallel` how
    many are worked on at once by this process."""

    def __init__(self, folder: Path | str, *, parallel: int = 8, timeout_s: float = 900.0) -> None:
        if parallel < 1:
            raise ConfigError(f"parallel is {parallel}, must be at least 1")
        if not 0 < timeout_s <= 86_400:
            raise ConfigError(f"timeout_s is {timeout_s}, must be above 0 and at most 86400 seconds")
        self.folder = Path(folder).absolute()
        self._places = asyncio.Semaphore(parallel)
        self._timeout_s = timeout_s
        for name in ("mirrors", "locks"):
            try:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"the store {self.folder} can't be used: {error.strerror}") from None

    def find(self, want: Want) -> Checkout | None:
        """What is there already, without git and without waiting."""
        mirror = self._mirror(want.repo)
        commit = mirror.marked(want.digest())
        return None if commit is None else Checkout(mirror.path, commit)

    async def make(self, want: Want) -> Checkout:
        """The state that is wanted, made now if it is not there. Raises RepoError."""
        made = (await self.make_all(want.repo, [want]))[want]
        if isinstance(made, RepoError):
            raise made
        return made

    async def make_all(self, repo: str, wants: Sequence[Want]) -> dict[Want, Checkout | RepoError]:
        """Everything that is wanted of one repository, commits in one fetch. An error for each that can't be had."""
        found: dict[Want, Checkout | RepoError] = {want: there for want in wants if (there := self.find(want))}
        if all(want in found for want in wants):
            return found
        try:
            async with self._places, asyncio.timeout(self._timeout_s), self._locked(repo):
                await self._fill(self._mirror(repo), wants, found)
            return found
        except TimeoutError:
            failed = RepoError(FailureKind.SOURCE, f"{repo}: not done after {self._timeout_s:g} s")
        except (OSError, GitError) as error:
            failed = RepoError(FailureKind.SOURCE, f"{repo}: {error}")
        return dict.fromkeys(wants, failed) | found

    async def _fill(self, mirror: Mirror, wants: Sequence[Want], found: dict[Want, Checkout | RepoError]) -> None:
        """Makes what is lacking, holding the lock; another process may have made some meanwhile."""
        found |= {want: there for want in wants if (there := self.find(want))}
        lacking = [want for want in wants if want not in found]
        if lacking:
            await mirror.open()
        for source in dict.fromkeys(want.source for want in lacking):
            some = [want for want in lacking if want.source == source]
            bases = await _bases(mirror, source, list(dict.fromkeys(want.base for want in some)))
            for want in some:
                try:
                    found[want] = Checkout(mirror.path, await _finish(mirror, want, bases[want.base]))
                except RepoError as error:
                    found[want] = error

    @asynccontextmanager
    async def _locked(self, repo: str) -> AsyncIterator[None]:
        """The lock of a repository, also among processes. Asked for again and again, so that waiting can be ended."""
        name = repo.replace("/", "%") + ".lock"
        handle = os.open(self.folder / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(_POLL_LOCK_S)
            yield
        finally:
            os.close(handle)

    def _mirror(self, repo: str) -> Mirror:
        return Mirror(self.folder / "mirrors" / f"{repo}.git")


async def fetch_all(
    store: RepoStore, wants: Iterable[Want], *, report: Callable[[Progress], None] = lambda _: None
) -> dict[Want, Checkout | RepoError]:
    """The state of each want, or why it can't be had. As many repositories at once as the store allows."""
    by_repo: dict[str, list[Want]] = {}
    for want in dict.fromkeys(wants):
        by_repo.setdefault(want.repo, []).append(want)
    found: dict[Want, Checkout | RepoError] = {}

    async def one(repo: str, lacking: list[Want]) -> None:
        began, wanted = asyncio.get_running_loop().time(), list(lacking)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_BACKOFF_S * 2 ** (attempt - 1))
            made = await store.make_all(repo, lacking)
            found.update(made)
            failures = {want: error for want, error in made.items() if isinstance(error, RepoError)}
            lacking = [want for want, error in failures.items() if error.kind is FailureKind.SOURCE]
            if not lacking:
                break
        errors = tuple(error for want in wanted if isinstance(error := found[want], RepoError))
        report(Progress(repo, len(wanted), errors, asyncio.get_running_loop().time() - began))

    async with asyncio.TaskGroup() as tasks:
        for repo, some in by_repo.items():
            tasks.create_task(one(repo, some), name=f"repository {repo}")
    return found


async def _bases(mirror: Mirror, source: str, wants: Sequence[Want]) -> dict[Want, str | RepoError]:
    """The commits of one source, without patches. Its default branch stays what it was when it was first fetched."""
    try:
        if "://" not in source and not await asyncio.to_thread(Path(source).exists):
            raise RepoError(FailureKind.MISSING, f"{source} is not there")
        commits = [want.commit for want in wants if want.commit is not None]
        missing = await mirror.fetch(source, commits) if commits else {}
        bases: dict[Want, str | RepoError] = {}
        for want in wants:
            if want.commit is not None:
                bases[want] = missing.get(want.commit, want.commit)
            else:
                bases[want] = mirror.marked(want.digest()) or await mirror.fetch_head(source)
        return bases
    except RepoError as error:
        return dict.fromkeys(wants, error)


async def _finish(mirror: Mirror, want: Want, base: str | RepoError) -> str:
    """The commit of a want, marked, and that of its base with it."""
    if isinstance(base, RepoError):
        raise base
    await mirror.mark(want.base.digest(), base)
    if not want.patch:
        return base
    commit = await mirror.apply(base, want.patch)
    await mirror.mark(want.digest(), commit)
    return commit
