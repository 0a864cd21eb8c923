"""From a commit in some repository to a folder with its files and a repository of one commit.

Invariants: the files are those of the commit, byte by byte, whatever its attributes say; the commit is what its hash
says, and so is every object; nothing of its history, its references or its configuration comes along.
"""

from __future__ import annotations

import hashlib
import os
import re
import time

from executor_service.workspaces.prepare.git import Git, GitError
from executor_service.workspaces.prepare.source import SourceError

_OBJECT_FORMAT = {40: "sha1", 64: "sha256"}
_RAW = "* -text -ident -filter !eol !working-tree-encoding -export-ignore -export-subst\n"
"""Attributes that win over those of the tree: files are written as they are stored."""
_CONFIG = {
    # A mount has other inodes, times of change and owners than the folder; git then trusts size and time of writing.
    "core.checkStat": "minimal",
    "core.trustctime": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
}
_WHO = "fairbox"


def resolve(git: Git, repository: str, commit: str) -> str:
    """Full hash of a commit. SourceError when there is none."""
    try:
        found = git.run(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except GitError:
        raise SourceError(f"is {commit!r}, which is no commit of this repository") from None
    # Option --end-of-options is echoed by some versions.
    return found.decode().split()[-1]


def export(git: Git, repository: str, commit: str, target: str, most_bytes: int, most_entries: int) -> int:
    """Writes the files of `commit` (a full hash) to the new folder `target`, and returns their size."""
    tree, written_at = _read_commit(git, repository, commit)
    os.mkdir(target)
    folder = os.path.join(target, ".git")
    os.mkdir(folder)
    kind = _OBJECT_FORMAT[len(commit)]
    words = ("init", "--quiet", "--template=", f"--object-format={kind}", "--initial-branch=main")
    git.run(folder, *words, work_tree=target)
    git.copy(repository, folder, tree)
    size = _measure(git, folder, tree, most_bytes, most_entries)
    os.makedirs(os.path.join(folder, "info"), exist_ok=True)
    attributes = os.path.join(folder, "info", "attributes")
    with open(attributes, "x", encoding="ascii") as file:
        file.write(_RAW)
    date = f"@{written_at} +0000"
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _identity(date)}
    first = git.run(folder, "commit-tree", tree, "-m", "workspace", env=who).decode().strip()
    git.run(folder, "update-ref", "refs/heads/main", first)
    for name, value in _CONFIG.items():
        git.run(folder, "config", name, value)
    git.run(folder, "read-tree", first, work_tree=target)
    git.run(folder, "checkout-index", "--all", "--index", "--quiet", work_tree=target)
    _set_times(target, min(written_at, int(time.time()) - 60))
    try:
        git.run(folder, "update-index", "--really-refresh", "-q", work_tree=target)
        git.run(folder, "diff-files", "--quiet", work_tree=target)
    except GitError as error:
        raise SourceError(f"is {commit!r}, whose files are not what was written: {error}") from None
    os.unlink(attributes)
    return size


def _identity(date: str) -> list[tuple[str, str]]:
    return [("NAME", _WHO), ("EMAIL", f"{_WHO}@localhost"), ("DATE", date)]


def _read_commit(git: Git, repository: str, commit: str) -> tuple[str, int]:
    """The tree of a commit and its time, after its hash was computed anew."""
    text = git.run(repository, "cat-file", "commit", commit)
    hasher = hashlib.new(_OBJECT_FORMAT[len(commit)], usedforsecurity=False)
    hasher.update(b"commit %d\0" % len(text))
    hasher.update(text)
    if hasher.hexdigest() != commit:
        raise SourceError(f"is {commit!r}, but the object of that name is another one")
    head = text.partition(b"\n\n")[0].decode("utf-8", "replace")
    tree = re.match(r"tree ([0-9a-f]{40,64})\n", head)
    written = re.search(r"^committer .*> (\d{1,12}) ", head, re.MULTILINE)
    if tree is None:
        raise SourceError(f"is {commit!r}, which has no tree")
    return tree[1], int(written[1]) if written else 0


def _measure(git: Git, folder: str, tree: str, most_bytes: int, most_entries: int) -> int:
    """Bytes of all files. SourceError when there are too many, before any is written."""
    size = count = 0
    rest = b""

    def take(data: bytes) -> None:
        nonlocal size, count, rest
        *lines, rest = (rest + data).split(b"\0")
        for line in lines:
            count += 1
            words = line.split(b"\t", 1)[0].split()
            size += int(words[3]) if words[3] != b"-" else 0
        if count > most_entries:
            raise SourceError(f"has more than {most_entries} files and folders")
        if size > most_bytes:
            raise SourceError(f"has files of more than {most_bytes} bytes, the most that a workspace may have")

    git.read(folder, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", tree, take=take)
    return size


def _set_times(target: str, written_at: int) -> None:
    """One time for every file, so that each preparation of a commit gives the same."""
    for folder, _, files, handle in os.fwalk(target, topdown=False):
        for name in files:
            os.utime(name, (written_at, written_at), dir_fd=handle, follow_symlinks=False)
        os.utime(folder, (written_at, written_at))
