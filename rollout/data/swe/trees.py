"""Source trees to read files of: a commit of a git repository, an archive of a release, a folder. Nothing is unpacked.

Content is text, with surrogates for what is not UTF-8. Repositories and archives may come from anybody: git is started
without hooks and with a deadline, names lead nowhere but into the tree, and a file has a bound.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fairbox.errors import FairboxError

__all__ = [
    "ArchiveTree",
    "Archives",
    "Clones",
    "FolderTree",
    "GitTree",
    "Source",
    "Tree",
    "TreeError",
    "diff_text",
    "run_git",
]

_MOST_BYTES = 16 << 20
"""Of one file; sources of Python have at most some hundred thousand."""
_MOST_KNOWN = 16
"""Files of an archive that are kept, so that it is not gone through again for each row."""
_GIT_S = 120.0
"""Longest time of one git; they only read what is there."""
_RELEASE = re.compile(r"(?P<project>.+?)-(?P<version>[0-9][^-]*?)(?:\.tar\.gz|\.tgz|\.tar\.bz2|\.zip|-.*\.whl)")


class TreeError(FairboxError):
    """A tree can't be read. The text starts with its name."""


class Tree(Protocol):
    """The files of one state of a project."""

    @property
    def name(self) -> str: ...

    def read(self, path: str) -> str | None:
        """The content of a regular file; None where there is none. Raises TreeError."""


class Source(Protocol):
    """Where trees of projects may be."""

    certain: bool
    """Whether what it gives is the state that was asked for, and not one of several releases that may be."""

    def trees(self, repo: str, commit: str | None) -> Sequence[Tree]:
        """Those that may be the state that is asked for: none, one, or several releases."""


class FolderTree:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder.resolve()

    def read(self, path: str) -> str | None:
        file = self._folder / path
        if not file.is_file() or not file.resolve().is_relative_to(self._folder):
            return None
        if file.stat().st_size > _MOST_BYTES:
            raise _too_large(self.name, path)
        return _text(file.read_bytes())

    def paths(self) -> list[str]:
        """All regular files, sorted."""
        return sorted(str(file.relative_to(self._folder)) for file in self._folder.rglob("*") if file.is_file())


class ArchiveTree:
    """A release: a source archive (its one folder is left out) or a wheel."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._known: dict[str, str | None] = {}

    def read(self, path: str) -> str | None:
        if path not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            content = _member(self._path, path)
            self._known[path] = None if content is None else _text(content)
        return self._known[path]

    def paths(self) -> list[str]:
        """All regular files, sorted."""
        try:
            if _is_zip(self._path):
                with zipfile.ZipFile(self._path) as archive:
                    names = [each.filename for each in archive.infolist() if not each.is_dir()]
            else:
                with tarfile.open(self._path) as tar:
                    names = [member.name for member in tar if member.isfile()]
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise TreeError(f"{self._path}: can't be read as an archive: {error}") from None
        return sorted(names if self._path.suffix == ".whl" else {name.partition("/")[2] for name in names} - {""})


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

    certain = True

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise TreeError(f"{folder}: is no folder")
        self._folder = folder

    def trees(self, repo: str, commit: str | None) -> Sequence[Tree]:
        """The commit, or what HEAD is where none is named; none where the repository doesn't have it."""
        for name in (repo.replace("/", "__"), repo):
            for repository in (self._folder / name, self._folder / f"{name}.git"):
                if repository.is_dir() and repository.resolve().is_relative_to(self._folder.resolve()):
                    found = _commit(repository, commit or "HEAD")
                    return [] if found is None else [GitTree(repository, found)]
        return []


class Archives:
    """A folder with source archives and wheels of releases, as pip downloads them."""

    certain = False

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise TreeError(f"{folder}: is no folder")
        self._releases: dict[str, list[ArchiveTree]] = {}
        for path in sorted(folder.iterdir()):
            if found := _RELEASE.fullmatch(path.name):
                self._releases.setdefault(_normal(found["project"]), []).append(ArchiveTree(path))

    def trees(self, repo: str, commit: str | None) -> Sequence[Tree]:
        """All releases of the project that is called as the repository, with or without a `python-` or `2`."""
        del commit  # releases don't say theirs
        name = _normal(_project(repo))
        for each in (name, name.removeprefix("python-"), f"python-{name}", f"{name}2"):
            if each in self._releases:
                return self._releases[each]
        return []


def run_git(repository: Path, *words: str, text: bytes = b"") -> bytes:
    """What a git command that changes nothing but objects writes. Raises TreeError, also when it takes too long."""
    settings = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true"]
    command = ["git", "--no-pager", "--no-replace-objects", "-C", str(repository), *settings, *words]
    try:
        done = subprocess.run(command, input=text, capture_output=True, check=False, timeout=_GIT_S)  # noqa: S603
    except FileNotFoundError:
        raise TreeError("git is not installed, or not on PATH") from None
    except subprocess.TimeoutExpired:
        raise TreeError(f"{repository}: git {words[0]} took longer than {_GIT_S:g} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise TreeError(f"{repository}: git {words[0]}: {said[-1][:200]}")
    return done.stdout


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


def _member(archive: Path, path: str) -> bytes | None:
    try:
        if _is_zip(archive):
            return _member_of_zip(archive, path)
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and member.name.removeprefix("./").partition("/")[2] == path:
                    if member.size > _MOST_BYTES:
                        raise _too_large(archive.name, path)
                    file = tar.extractfile(member)
                    assert file is not None
                    return file.read()
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise TreeError(f"{archive}: can't be read as an archive: {error}") from None
    return None


def _member_of_zip(archive: Path, path: str) -> bytes | None:
    with zipfile.ZipFile(archive) as file:
        for each in file.infolist():
            inner = each.filename if archive.suffix == ".whl" else each.filename.partition("/")[2]
            if inner == path and not each.is_dir():
                if each.file_size > _MOST_BYTES:
                    raise _too_large(archive.name, path)
                return file.read(each)
    return None


def _is_zip(path: Path) -> bool:
    return path.suffix in (".zip", ".whl")


def _project(repo: str) -> str:
    """The name of a repository; that of SWE-smith's copies (`swesmith/OWNER__NAME.COMMIT`) is inside of theirs."""
    name = repo.rpartition("/")[2]
    return name.partition("__")[2].rpartition(".")[0] if repo.startswith("swesmith/") and "__" in name else name


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _too_large(name: str, path: str) -> TreeError:
    return TreeError(f"{name}: {path} has more than {_MOST_BYTES >> 20} MiB")
