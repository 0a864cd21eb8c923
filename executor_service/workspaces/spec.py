"""What a preparation is told and what it answers, and how a workspace is named. Without imports that cost time.

The id of a workspace is a hash of what it holds and where it is mounted, so that every server gives it the same id.
"""

from __future__ import annotations

import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypedDict

    class Spec(TypedDict):
        """One preparation."""

        kind: Literal["local", "bundle", "volume", "remote"]
        source: str
        """Path of the repository, of the bundle file or of the volume; URL of the remote."""
        commit: str
        mount_path: str
        idle_ttl_s: float
        roots: list[str]
        """Folders below which a local repository or a volume must lie."""
        ready: str
        """Folder of the finished workspaces."""
        folder: str
        """Where to make this one; nothing is there yet."""
        mirror: str
        """For a remote: bare repository that keeps what was fetched."""
        most_bytes: int
        cpu_s: int
        git: str

    class Facts(TypedDict):
        """What is kept of a workspace, beside its files."""

        workspace_id: str
        commit: str
        mount_path: str
        idle_ttl_s: float
        size_bytes: int
        """Of the files."""
        disk_bytes: int
        """Of everything that goes when it is removed."""
        copy_bytes: int
        """What a copy of it takes, in whole blocks."""
        entries: int
        """Files and folders of it."""
        root: str
        """For a volume: the root that it lies below; empty otherwise."""
        path: str
        """For a volume: its path below the root."""

    class Answer(TypedDict, total=False):
        """Facts, or an error."""

        facts: Facts
        made: bool
        """Whether there is something in `folder`."""
        error: str
        field: str
        """The field of the request that is to blame; empty: the source can't be reached, or a fault of ours."""
        reachable: bool


def workspace_id(kind: str, what: str, mount_path: str) -> str:
    """`kind` is `git` or `volume`; `what` the full hash of the commit, or the path of the volume."""
    return "ws-" + hashlib.sha256("\0".join((kind, what, mount_path)).encode()).hexdigest()[:32]
