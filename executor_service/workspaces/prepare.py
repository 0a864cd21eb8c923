"""One preparation, in a process of its own: from a Spec to a folder that only has to be renamed.

Invariants: what is in `folder` when the answer says `made` is whole, checked and on disk; whatever ends this process
earlier leaves something that nobody takes for a workspace.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys

from executor_service.workspaces.export import MOST_ENTRIES, export, resolve
from executor_service.workspaces.git import Git, GitError
from executor_service.workspaces.source import SourceError, folder_size, git_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.workspaces.spec import Answer, Facts, Spec

_PR_SET_PDEATHSIG = 1
_FIELDS = {"local": "local_path", "bundle": "bundle", "remote": "remote_url"}
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PROTOCOLS = "https:http:git"


class _UnreachableError(Exception):
    """The remote did not give what was asked for."""


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0)  # programs of any uid write to their layer above the files
    spec: Spec = json.load(sys.stdin)
    field = _FIELDS[spec["kind"]]
    try:
        answer = _git(spec)
        if "facts" in answer:
            handle = os.open(spec["folder"], os.O_RDONLY | os.O_DIRECTORY)
            if libc.syncfs(handle):
                raise OSError("syncfs failed")
    except _CommitError as error:
        answer = {"error": str(error), "field": "commit"}
    except (SourceError, GitError) as error:
        answer = {"error": str(error), "field": field}
    except _UnreachableError as error:
        answer = {"error": str(error), "field": "", "reachable": False}
    except OSError as error:
        answer = {"error": f"{type(error).__name__}: {error}", "field": "", "reachable": True}
    json.dump(answer, sys.stdout)


class _CommitError(Exception):
    """The commit is to blame, and not the source."""


def _git(spec: Spec) -> Answer:
    os.mkdir(spec["folder"])
    git = Git(
        spec["git"], os.path.join(spec["folder"], "gitconfig"), most_bytes=spec["most_bytes"], cpu_s=spec["cpu_s"]
    )
    wanted = spec["commit"]
    match spec["kind"]:
        case "local":
            repository = git_folder(spec["source"], spec["roots"])
        case "bundle":
            repository = _unbundle(git, spec)
        case _:
            repository, wanted = _fetch(git, spec)
    try:
        commit = resolve(git, repository, wanted)
    except SourceError:
        raise _CommitError(f"is {spec['commit']!r}, which is no commit of this repository") from None
    if commit in spec["known"]:
        return {"commit": commit}
    size = export(git, repository, commit, os.path.join(spec["folder"], "tree"), spec["most_bytes"])
    for leftover in ("gitconfig", "bundle.git"):
        _remove(os.path.join(spec["folder"], leftover))
    disk, entries = folder_size(spec["folder"], 2 * MOST_ENTRIES)
    facts: Facts = {
        **spec["identity"],
        "commit": commit,
        "size_bytes": size,
        "disk_bytes": disk,
        "entries": entries,
    }
    with open(os.path.join(spec["folder"], "facts.json"), "x", encoding="ascii") as file:
        json.dump(facts, file)
    return {"facts": facts}


def _unbundle(git: Git, spec: Spec) -> str:
    """The bundle as a bare repository, with its references."""
    repository = os.path.join(spec["folder"], "bundle.git")
    os.mkdir(repository, 0o700)
    with open(spec["source"], "rb") as file:
        kind = "sha256" if b"@object-format=sha256" in file.read(4096) else "sha1"
    git.run(repository, "init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
    try:
        heads = git.run(repository, "bundle", "unbundle", spec["source"]).decode("utf-8", "replace")
    except GitError as error:
        raise SourceError(f"can't be read: {error}") from None
    orders = ""
    for line in heads.splitlines():
        found, _, name = line.partition(" ")
        if _HASH.fullmatch(found) and re.fullmatch(r"refs/[\w./+@-]+", name, re.ASCII):
            orders += f"create {name} {found}\n"
        elif name == "HEAD" and _HASH.fullmatch(found):
            git.run(repository, "update-ref", "--no-deref", "HEAD", found)
    git.run(repository, "update-ref", "--stdin", stdin=orders.encode())
    return repository


def _fetch(git: Git, spec: Spec) -> tuple[str, str]:
    """The mirror of a remote, with the commit in it, and the name that it has there."""
    mirror, commit = spec["mirror"], spec["commit"]
    whole = bool(_HASH.fullmatch(commit))
    name = f"refs/fetched/{commit}" if whole else "refs/fetched/" + commit.encode().hex()[:200]
    fresh = not os.path.isdir(mirror)
    if fresh:
        os.mkdir(mirror, 0o700)
        git.run(mirror, "init", "--quiet", "--bare", "--template=")
    elif whole:
        try:
            return mirror, resolve(git, mirror, commit)
        except SourceError:
            pass  # not fetched yet
    words = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    try:
        git.run(mirror, *words, "--", spec["source"], f"+{commit}:{name}", protocols=_PROTOCOLS)
    except GitError as error:
        # What is left of a fetch that was killed would be in the way of every later one.
        _remove(mirror)
        raise _UnreachableError(str(error)) from None
    return mirror, name


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
