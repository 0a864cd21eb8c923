"""The facts of the execution tier, independent of gRPC: what is asked for, and what became of it.

Invariants: everything here is immutable and validated by whoever made it (see `wire.validation`); a result always says
who could have caused it. Times are in seconds, sizes in bytes, program output is bytes and need not be UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limiter import Lease


class Outcome(StrEnum):
    """Outcome of a program."""

    FINISHED = "FINISHED"
    """Ended by itself with exit code 0."""
    NONZERO_EXIT = "NONZERO_EXIT"
    """Ended by itself with another exit code."""
    COMPILE_ERROR = "COMPILE_ERROR"
    """Was not run: compiling it failed."""
    TIME_LIMIT = "TIME_LIMIT"
    """Killed: the wall time limit."""
    CPU_LIMIT = "CPU_LIMIT"
    """Killed: the CPU time limit, over all its processes."""
    MEMORY_LIMIT = "MEMORY_LIMIT"
    """Killed: the memory limit, over all its processes."""
    PROCESS_LIMIT = "PROCESS_LIMIT"
    """Killed: the limit of processes and threads, over all of them."""
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    """Killed: it wrote far more than the output limit allows."""
    SIGNALED = "SIGNALED"
    """Ended by a signal that the server did not send."""
    SANDBOX_ERROR = "SANDBOX_ERROR"
    """The sandbox failed; the program may or may not have run. The cause is INFRA."""
    CANCELLED = "CANCELLED"
    """Killed on behalf of the caller, or because the server's limiter session lapsed. The cause is INFRA."""


class Cause(StrEnum):
    """Who could have caused an outcome. What the code could cause is never INFRA."""

    POLICY = "POLICY"
    """The code could have caused it. Score it."""
    TASK = "TASK"
    """The problem's own files or tests. A fault of the data set; report it."""
    INFRA = "INFRA"
    """The code could not have caused it. Never score it."""


class IsolationLevel(StrEnum):
    """Isolation of a program from the server and from other programs."""

    LANDLOCK = "landlock"
    """Landlock, seccomp and resource limits."""
    NAMESPACES = "namespaces"
    """Namespaces of its own, no capabilities, seccomp and resource limits."""


class FileStatus(StrEnum):
    """Status of a file that a request asked for."""

    RETURNED = "RETURNED"
    """The whole file is there."""
    MISSING = "MISSING"
    """Nothing has that path."""
    NOT_REGULAR = "NOT_REGULAR"
    """A folder, a link, a pipe, a device or a socket; links are not followed."""
    TOO_LARGE = "TOO_LARGE"
    """Larger than what was left of the limit; `size` is its size."""
    UNREADABLE = "UNREADABLE"
    """It could not be read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what a program may use. In a request, 0 means the server's default."""

    wall_time_s: float = 0.0
    """Wall time of the program; queues and set-up are never charged."""
    cpu_time_s: float = 0.0
    """CPU time of all its processes together."""
    memory_bytes: int = 0
    """Resident memory of all its processes together."""
    processes: int = 0
    """Processes and threads alive at once."""
    open_files: int = 0
    """Open files of one process."""
    output_bytes: int = 0
    """Bytes kept of each of stdout and stderr."""
    file_bytes: int = 0
    """Size of the largest file that it may write."""
    disk_bytes: int = 0
    """Bytes in its private folders together."""
    return_bytes: int = 0
    """Bytes of all returned files together."""
    compile_time_s: float = 0.0
    """Wall time for compiling."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to be put into the work folder."""

    path: str
    """Relative to the work folder, `/` between parts."""
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A program to run: valid, with every limit set."""

    code: bytes
    language: str
    limits: Limits
    stdin: bytes = b""
    args: tuple[str, ...] = ()
    files: tuple[InputFile, ...] = ()
    return_paths: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workspace_id: str = ""
    """Mounted for the run; empty: none."""
    workspace_read_only: bool = False
    """Mounted without a writable layer."""
    image: str = ""
    """Name or id of the image that is its root; empty: none."""
    user: str = ""
    """User of the image that it runs as; empty: the image's own, or with `beside` the session's."""
    lease: Lease | None = None
    request_id: str = ""
    tenant: str = ""
    profile: str = ""
    """Runtime profile; empty: the server chooses."""
    session_id: str = ""
    """Runs as the next cell of this session; a limit of 0 is then the session's."""
    beside: bool = False
    """Runs at once, beside the shell of the session."""
    display: bool = False
    """True if the value of the last expression is displayed."""


@dataclass(frozen=True, slots=True)
class Output:
    """The bytes that a program wrote to one stream."""

    data: bytes = b""
    """The first bytes, up to the limit."""
    total_bytes: int = 0
    """Bytes written in all, as far as they were read."""
    truncated: bool = False
    """True when `data` is not all of it."""

    @property
    def text(self) -> str:
        """`data` for people and models: what is not UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that was asked for."""

    path: str
    status: FileStatus
    content: bytes = b""
    """Empty unless RETURNED."""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Compilation:
    """Result of a compiler's run."""

    outcome: Outcome
    """Outcome of the compiler. FINISHED says that it was content, and nearly always that there is a program."""
    exit_code: int = 0
    """128 + signal when a signal ended it."""
    stdout: Output = Output()
    stderr: Output = Output()
    wall_time_s: float = 0.0
    """Wall time of the compiler; that of the earlier compilation when `cached`."""
    cached: bool = False
    """True when an earlier compilation of the same source was used."""


@dataclass(frozen=True, slots=True)
class Display:
    """One displayed value, in several forms."""

    data: Mapping[str, bytes]
    """MIME type -> content."""
    truncated: bool = False
    """True when a form was dropped, or plain text cut, for its size."""

    @property
    def text(self) -> str:
        """Its plain text."""
        return self.data.get("text/plain", b"").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """An interpreter or a shell that keeps its state between cells, at one moment."""

    session_id: str
    """Names the server that owns it."""
    owner: str = ""
    """Whoever created it said so; a trajectory's id."""
    tenant: str = ""
    language: str = "python"
    profile: str = ""
    parent_session_id: str = ""
    """Session that it was branched from; empty for a root."""
    cells: int = 0
    """Cells run so far, those before it was branched off included."""
    busy: bool = False
    """True while a cell runs."""
    idle_s: float = 0.0
    """Time since its last cell ended, or since it was created."""
    idle_ttl_s: float = 0.0
    """It is deleted after being idle for so long."""
    memory_bytes: int = 0
    """Resident memory of its interpreter at the end of its last cell; 0 where that is not known."""
    served_by: str = ""
    workspace_id: str = ""
    """Workspace that its cells find at the workspace's mount path; empty: none."""
    image: str = ""
    """Image that is the root of its shell; empty: none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of a session at one moment, as an image."""

    image: str
    """Its id; programs and sessions of the same tenant may name it."""
    bytes: int
    """Bytes that it takes beyond the image of the session."""
    served_by: str
    """Name of the server that has it."""


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image that a server has."""

    name: str
    """Its name in requests."""
    image: str
    """Its id, which may be named as well."""
    size_bytes: int
    cached: bool
    """It was there before."""
    served_by: str
    """Name of the server."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Result of a program."""

    outcome: Outcome
    cause: Cause
    exit_code: int = 0
    """Exit code when it ended by itself; 128 + signal otherwise."""
    signal: int = 0
    """Signal that ended it; 0 when it ended by itself."""
    stdout: Output = Output()
    stderr: Output = Output()
    files: tuple[OutputFile, ...] = ()
    """One per path asked for, in that order."""
    compilation: Compilation | None = None
    """Set when the language compiles and its compiler ran."""
    displays: tuple[Display, ...] = ()
    """Displayed values, in order."""
    queue_time_s: float = 0.0
    """Time in the queues of limiter (when the executor acquired the token) and executor."""
    setup_time_s: float = 0.0
    """Time to set up the sandbox (a copy of the workspace included), to bind the lease and to write the files."""
    wall_time_s: float = 0.0
    """Wall time of the program."""
    cpu_time_s: float = 0.0
    """CPU time of all its processes."""
    peak_memory_bytes: int = 0
    """The most memory at once; 0 where it is not known."""
    isolation_level: IsolationLevel = IsolationLevel.NAMESPACES
    profile: str = ""
    """Runtime profile that it ran in."""
    served_by: str = ""
    """Name of the server that ran it."""
    request_id: str = ""
    deduplicated: bool = False
    """True when this is the result of an earlier call with the same request id."""
    message: str = ""
    """One sentence for people; set for limits, SANDBOX_ERROR and CANCELLED."""
    cell: int = 0
    """In a session: number of the cell, from 1."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All that was written, by its compiler too."""
        said = (self.compilation.stdout, self.compilation.stderr) if self.compilation else ()
        return (self.stdout, self.stderr, *said)

    @property
    def size(self) -> int:
        """Bytes of all that it returns."""
        size = sum([len(output.data) for output in self.outputs])
        for file in self.files:
            size += len(file.content)
        for display in self.displays:
            size += sum(map(len, display.data.values()))
        return size

    @property
    def ok(self) -> bool:
        """True if the program ended by itself with exit code 0."""
        return self.outcome is Outcome.FINISHED

    def _repr_html_(self) -> str:
        from executor_service.html import result_html  # for notebooks alone

        return result_html(self)


@dataclass(frozen=True, slots=True)
class Workspace:
    """A repository at a commit that a server has ready for runs."""

    workspace_id: str
    """Known to this server and tenant alone; the same source, commit and mount path give it again while it is there."""
    commit: str
    """Full hash."""
    size_bytes: int
    """Bytes of the files."""
    cached: bool
    """True when it had been prepared before."""
    served_by: str
    """Name of the server that has it."""
