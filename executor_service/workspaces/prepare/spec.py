"""Types of the specification of a preparation and of its answer. They exist for the type checker alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypedDict

    class Identity(TypedDict):
        """Identity of a workspace, decided before it is made."""

        workspace_id: str
        """Random: whoever has not been given it can't name it."""
        tenant: str
        source: str
        """Digest of tenant, source and mount path; of a bundle, of all its bytes."""
        folder: str
        """Name of its folder: random too, and another one, because the inits of boxes learn it."""
        mount_path: str
        idle_ttl_s: float

    class PreparationTask(TypedDict):
        """Source, target and bounds of one preparation."""

        kind: Literal["local", "bundle", "remote", "sandboxed"]
        """A bundle is made a folder in a sandbox, by this program, which then adopts what is in the sandbox."""
        source: str
        """Path of the repository; URL of the remote; name of the bundle in the folder that FAIRBOX_WORKSPACE names."""
        commit: str
        roots: list[str]
        """Folders below which a local repository must lie."""
        known: list[str]
        """Commits of which this caller has a workspace from the same source already, at the same path."""
        folder: str
        """Folder to make for this workspace; nothing is there yet."""
        mirror: str
        """For a remote: bare repository that keeps what was fetched."""
        most_bytes: int
        """Most bytes of all files."""
        most_entries: int
        """Files and folders."""
        memory_bytes: int
        """Address space of each process."""
        cpu_s: int
        git: str

    class Spec(PreparationTask, total=False):
        """One preparation. Without an identity, which no sandbox is told, it only makes the folder `tree`."""

        identity: Identity
        said: str
        """Sandboxed: what the one in the sandbox has answered; else empty."""
        reader: int
        """Sandboxed: descriptor of the socket that gives what is in the sandbox; else -1."""

    class Facts(Identity):
        """Record of a workspace, kept beside its files."""

        commit: str
        """The full hash."""
        size_bytes: int
        """Bytes of the files."""
        disk_bytes: int
        """Bytes of everything that is removed with the workspace, in whole blocks; as much as a copy takes."""
        entries: int
        """Files and folders of it."""

    class PreparationAnswer(TypedDict, total=False):
        """Facts of what is in `folder`, or a commit (without a size: it is known already), or an error."""

        facts: Facts
        commit: str
        size_bytes: int
        error: str
        field: str
        """The field of the request that is to blame; empty: the source can't be reached, or a fault of ours."""
        reachable: bool
