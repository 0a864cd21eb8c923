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

        kind: Literal["local", "bundle", "remote"]
        source: str
        """Path of the repository or of the bundle file; URL of the remote."""
        commit: str
        mount_path: str
        idle_ttl_s: float
        roots: list[str]
        """Folders below which a local repository must lie."""
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
        """Of everything that goes when it is removed, in whole blocks; as much as a copy takes."""
        entries: int
        """Files and folders of it."""

    class Answer(TypedDict, total=False):
        """Facts, or an error."""

        facts: Facts
        made: bool
        """Whether there is something in `folder`."""
        error: str
        field: str
        """The field of the request that is to blame; empty: the source can't be reached, or a fault of ours."""
        reachable: bool


def workspace_id(commit: str, mount_path: str) -> str:
    """`commit` is the full hash."""
    return "ws-" + hashlib.sha256("\0".join(("git", commit, mount_path)).encode()).hexdigest()[:32]
