"""`RepoStore`: a folder of bare repositories that hold the commits that were wanted, each fetched once.

    store = RepoStore(Path("repos"))
    checkout = await store.make(Want("pallets/jinja", "https://github.com/pallets/jinja.git", commit))
    options = {"bash": {"workspace": checkout.workspace()}}

Invariants: a state counts only after it was found whole; one process at a time writes to a repository (a lock that the
system drops with the process). Reading needs no lock. Nothing that was whole is ever removed: deleting a repository's
folder is the user's to do, while nobody prepares it.

A want is named by a digest of what decides its content, so that the same want has the same name on every machine and in
every run. Not everything that decides is known beforehand: the default branch of a source is what it is when it is
fetched, and stays that in this store.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.errors import ConfigError, FieldError, FieldErrors
from fairbox.git import GitError
from rollout.data.repos.mirror import FailureKind, Mirror, RepoError

_REPO = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*){0,3}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FIELD = re.compile(r"\{([^{}]*)\}")
_FIELDS = ("repo", "owner", "name", "commit", "instance_id")
_TAKEN = (".git", ".lock")
"""Endings of folders of the store itself."""


@dataclass(frozen=True, slots=True)
class Want:
    """One state of one repository. Raises FieldErrors for what can't be."""

    repo: str
    """owner/name; names the mirror."""
    source: str
    """A URL (`https://`, `http://`, `file://`), or the path of a repository or a bundle; paths become absolute."""
    commit: str | None = None
    """Full hash; None: the default branch."""
    patch: str = ""
    """Applied on top. The result is a commit without a parent."""

    def __post_init__(self) -> None:
        found = []
        parts = self.repo.split("/")
        if not _REPO.fullmatch(self.repo) or any(part.endswith(_TAKEN) for part in parts):
            found.append(FieldError("repo", f"is {self.repo[:80]!r}, must be like owner/name"))
        if self.commit is not None and not _COMMIT.fullmatch(self.commit):
            problem = f"is {self.commit[:80]!r}, must be the whole hash of a commit, in small letters, or null"
            found.append(FieldError("base_commit", problem))
        if not self.source or not self.source.isprintable() or self.source.startswith("-"):
            found.append(FieldError("source", f"is {self.source[:80]!r}, must be a URL or a path"))
        if "\0" in self.patch:
            found.append(FieldError("patch", "holds a null character"))
        if found:
            raise FieldErrors(found)
        if "://" not in self.source:
            # One name for one place, whichever folder it is asked for from.
            object.__setattr__(self, "source", str(Path(self.source).absolute()))

    def digest(self) -> str:
        """32 hex digits. What they are made of must not change: stores that are there name their states so."""
        decides = [self.commit or self.source, "", self.patch]
        return hashlib.sha256(json.dumps(decides).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def base(self) -> Want:
        """The same without the patch."""
        return Want(self.repo, self.source, self.commit)


def check_template(template: str) -> None:
    """Raises FieldErrors unless every name in braces is one that rows have."""
    unknown = [name for name in _FIELD.findall(template) if name not in _FIELDS]
    if unknown or "{" in _FIELD.sub("", template):
        allowed = ", ".join(f"{{{name}}}" for name in _FIELDS)
        raise FieldErrors([FieldError("source", f"is {template!r}, may have of names in braces only {allowed}")])


def row_want(row: Mapping[str, Any], template: str) -> Want:
    """State that a row of code search data needs: its `repo`, `base_commit`, and `patch` if `use_patch` is true.

    `template` is the source, with `{repo}`, `{owner}`, `{name}`, `{commit}` and `{instance_id}` filled in from the row.
    Raises FieldErrors.
    """
    repo, commit, patched = row.get("repo"), row.get("base_commit"), row.get("use_patch") or False
    found = []
    if not isinstance(repo, str):
        found.append(FieldError("repo", f"is {repo!r}, must be a text like owner/name"))
    if commit is not None and not isinstance(commit, str):
        found.append(FieldError("base_commit", f"is {commit!r}, must be a text or null"))
    if not isinstance(patched, bool):
        found.append(FieldError("use_patch", f"is {patched!r}, must be true or false"))
    elif patched and not isinstance(row.get("patch"), str):
        found.append(FieldError("patch", f"is {row.get('patch')!r}, must be a text, because use_patch is true"))
    if found or not isinstance(repo, str):
        raise FieldErrors(found)
    owner, _, name = repo.rpartition("/")
    words = {"repo": repo, "owner": owner, "name": name, "commit": commit or "HEAD"}
    words["instance_id"] = str(row.get("instance_id") or "")
    source = _FIELD.sub(lambda match: words.get(match[1], match[0]), template)
    if any(".." in word or word.startswith("/") for word in words.values()):
        raise FieldErrors([FieldError("repo", f"is {repo!r}, must not lead to another folder")])
    return Want(repo, source, commit or None, row["patch"] if patched else "")


_ATTEMPTS = 3
"""Attempts at each repository, while its source fails."""
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
        """Finds a state, without git and without waiting; None if it is not there yet."""
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
        """Makes the wanted states of one repository, with one fetch. An error for each that can't be had."""
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
