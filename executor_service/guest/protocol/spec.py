"""Types of the orders to boxes and workers, and of their answers. They exist for the type checker alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, TypedDict

    class FileEntry(TypedDict):
        path: str
        size: int
        mode: int

    class Groups(TypedDict):
        """Control group files: empty strings where there is none."""

        init: list[str]
        """Joined by the init, once."""
        attach: list[str]
        """Joined by each worker."""
        each_use: str
        """Folder in which each use gets a group of its own, which its worker joins."""
        dying: str
        """Counts groups of ended uses that the kernel keeps."""
        reclaim: str
        """Takes memory back from them."""
        oom: str
        processes: str
        cpu: str
        peak: str
        limits: dict[str, str]
        """Written by the init; their values are those of `meters.limit_values()`."""
        charged: str
        """Says how much memory is charged to the group now."""
        used: str
        """Says what that is used for."""

    class ImageSpec(TypedDict):
        """An image whose programs a box is for."""

        layers: list[str]
        """Folders, relative to `folder`, the highest first."""
        folder: str
        """Folder of the host that all are below."""
        owner: int
        """Uid of the host that the files belong to."""

    class BoxSpec(TypedDict):
        """Specification of a box; the same for all its uses."""

        number: int
        """Its place in the page of leases."""
        uid: int
        binds: list[str]
        links: list[tuple[str, str]]
        etc: dict[str, str]
        work: str
        main: str
        """Name of a Python program's file, in the work folder."""
        disk_bytes: int
        inodes: int
        scratch: str
        """Folder for folders of uses, where nothing can be mounted; else empty."""
        store: str
        """Folder of the host that workspaces are below; empty: there are none."""
        landlock: int
        """Version to go by, where nothing can be mounted."""
        image: ImageSpec | None
        """None: programs see what the host has."""
        groups: Groups

    class WorkspaceOrder(TypedDict):
        """A workspace for one use."""

        path: str
        """Relative to the store."""
        target: str
        branches: bool
        """True if there may be branches, which get layers of their own."""
        most_bytes: int
        """Most bytes of a copy, made if nothing can be mounted."""
        read_only: bool
        """True if writing fails; never with `branches`."""

    class Begin(TypedDict):
        """Order to the init: what the coming use may have."""

        type: Literal["begin"]
        serves: bool
        wall_time_s: float
        cpu_time_s: float
        memory_bytes: int
        processes: int
        """Limits of the control groups are to be set to this, and to `memory_bytes`; 0: they are right already."""
        tasks: int
        """Processes and threads, where nothing else counts them; else 0."""
        disk_bytes: int
        inodes: int
        workspace: WorkspaceOrder | None

    class Task(TypedDict):
        """Head of the frame to a worker. The bytes are the standard input, then each file."""

        type: Literal["task"]
        mode: Literal["main", "exec", "serve"]
        collects: bool
        """True if files are to be returned; the worker tells the init."""
        entry: str
        work: str
        folder: str
        """Folder that it starts in; empty: `work`."""
        user: str
        """User of the image that it runs as, `user[:group]`; empty: root. Only for a box with an image."""
        workspace: str
        """Folder of the use's workspace; empty: there is none."""
        argv: list[str]
        env: dict[str, str]
        rlimits: dict[str, int]
        stdin_size: int
        talks: bool
        """True if the socket of this frame becomes the standard input."""
        files: list[FileEntry]

    FileAnswer = tuple[Literal["returned", "missing", "not_regular", "too_large", "unreadable"], int]
    """Status of a file that was asked for, and its size."""
