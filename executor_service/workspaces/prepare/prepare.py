"""One preparation, in a process of its own: from a Spec to a folder that only has to be renamed.

A bundle takes two: the first, in a sandbox, lets git at it; the second copies what has come of it out of the sandbox.

Invariants: what is in `folder` when the answer has facts is whole, checked and on disk; whatever ends this process
earlier leaves something that nobody takes for a workspace.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys

from executor_service.workspaces.prepare.export import export, resolve
from executor_service.workspaces.prepare.git import Git, GitError
from executor_service.workspaces.prepare.source import SourceError, folder_size, git_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from executor_service.workspaces.prepare.spec import Facts, PreparationAnswer, Spec

_PR_SET_PDEATHSIG = 1
_FIELDS = {"local": "local_path", "bundle": "bundle", "remote": "remote_url", "sandboxed": "bundle"}
_MOST_WORDS = 600
"""Characters of what a sandbox says that are passed on."""
_OBJECT_BYTES = 256 << 20
"""Bytes for what a workspace has beside its files: no bundle is that large."""
_COPY_MEMORY = 1 << 30
"""Address space for copying: the names in a folder."""
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PROTOCOLS = "https:http:git"


class _UnreachableError(Exception):
    """The remote did not give what was asked for."""


def main() -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0)  # programs of any uid write to their layer above the files
    spec: Spec = json.load(sys.stdin)
    spec["folder"] = os.path.abspath(spec["folder"])
    field = _FIELDS[spec["kind"]]
    try:
        answer = _prepare(spec)
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


def _prepare(spec: Spec) -> PreparationAnswer:
    commit, size = _adopt(spec) if spec["kind"] == "sandboxed" else _make(spec)
    if size is None:
        return {"commit": commit}
    if "identity" not in spec:
        return {"commit": commit, "size_bytes": size}
    disk, entries = folder_size(spec["folder"], 2 * spec["most_entries"])
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


def _make(spec: Spec) -> tuple[str, int | None]:
    """The folder `tree`. Returns the full hash of the commit, and the size of the files; None: it is known."""
    os.mkdir(spec["folder"])
    config_file = os.path.join(spec["folder"], "gitconfig")
    git = Git(
        spec["git"],
        config_file,
        most_bytes=spec["most_bytes"],
        memory_bytes=spec["memory_bytes"],
        cpu_s=spec["cpu_s"],
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
        return commit, None
    bounds = (spec["most_bytes"], spec["most_entries"])
    size = export(git, repository, commit, os.path.join(spec["folder"], "tree"), *bounds)
    os.unlink(config_file)
    return commit, size


def _adopt(spec: Spec) -> tuple[str, int | None]:
    """As `_make`, of what a sandbox has made, by a program that may have become the sender's own: what it has answered
    is the sender's word, and its folder is copied without following anything."""
    from executor_service.guest.protocol import wire
    from executor_service.guest.walls import copies

    resource.setrlimit(resource.RLIMIT_AS, (_COPY_MEMORY, _COPY_MEMORY))
    try:
        said = json.loads(spec["said"])
    except (ValueError, RecursionError):
        said = None
    match said:
        case {"error": str(error)}:
            text = error[-_MOST_WORDS:].encode("utf-8", "replace").decode()
            raise _CommitError(text) if said.get("field") == "commit" else SourceError(text)
        case {"commit": str(commit)} if commit in spec["known"]:
            return commit, None
        case {"commit": str(commit), "size_bytes": int(size)} if _HASH.fullmatch(commit):
            size = min(max(size, 0), spec["most_bytes"])
        case _:
            raise SourceError("can't be read: git has failed without a word")
    os.mkdir(spec["folder"])
    target = os.path.join(spec["folder"], "tree")
    os.mkdir(target)
    with socket.socket(fileno=spec["reader"]) as reader:
        reader.sendall(wire.encode({"type": "folder", "path": "made/tree"}))
        handles = socket.recv_fds(reader, 1, 1)[1]
        try:
            facts = os.fstat(handles[0])
            copy = copies.Copy(spec["most_bytes"] + _OBJECT_BYTES, -1, most_entries=2 * spec["most_entries"])
            copy.run(handles[0], target)
            os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        except (IndexError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            raise SourceError(f"can't be copied from where it was read: {error}") from None
    return commit, size


def _unbundle(git: Git, spec: Spec) -> str:
    """The bundle as a bare repository, with its references."""
    repository = os.path.join(spec["folder"], "bundle.git")
    os.mkdir(repository, 0o700)
    source = os.path.join(os.environ["FAIRBOX_WORKSPACE"], spec["source"])
    with open(source, "rb") as file:
        kind = "sha256" if b"@object-format=sha256" in file.read(4096) else "sha1"
    git.run(repository, "init", "--quiet", "--bare", "--template=", f"--object-format={kind}")
    try:
        heads = git.run(repository, "bundle", "unbundle", source).decode("utf-8", "replace")
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
        shutil.rmtree(mirror)
        raise _UnreachableError(str(error)) from None
    return mirror, name
