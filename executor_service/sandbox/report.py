"""Plan and report of a program: what goes into a sandbox and what comes out, before anybody judges it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from executor_service.model import InputFile, Limits, Output, OutputFile

NO_END_S = 1e9
"""Seconds of a limit that an init need not keep: somebody else does, or there is nothing to be kept now."""


class Mode(StrEnum):
    """Kinds of process that a worker becomes."""

    MAIN = "main"
    """A Python program in the worker's own interpreter: `python argv[0] ...`, without starting one."""
    EXEC = "exec"
    """Whatever `argv` names, started in the worker's place."""
    SERVE = "serve"
    """An interpreter that answers frames on a channel; `entry` names what serves."""


class Stream(StrEnum):
    """Which output bytes belong to."""

    STDOUT = "stdout"
    """Standard output."""
    STDERR = "stderr"
    """Standard error."""


class Killed(StrEnum):
    """Why a program was killed by us."""

    NOT = ""
    """It ended by itself."""
    WALL = "wall"
    """Wall time limit."""
    CPU = "cpu"
    """CPU time limit."""
    MEMORY = "memory"
    """Memory limit."""
    PROCESSES = "processes"
    """Process limit."""
    OUTPUT = "output"
    """It flooded a stream."""
    LAPSED = "lapsed"
    """The limiter session of this server lapsed, or the limiter took the lease back."""


@dataclass(frozen=True, slots=True)
class WorkspaceMount:
    """A prepared folder of the host, to be mounted below a private writable layer, or without one."""

    path: str
    """Relative to the host's store."""
    target: str
    """Path at which programs find it."""
    branches: bool = False
    """True if the run or session that mounts it may be branched."""
    most_bytes: int = 0
    """Most bytes of a private copy, made if nothing can be mounted."""
    read_only: bool = False
    """Writing fails; never with `branches`."""


@dataclass(frozen=True, slots=True)
class ImageMount:
    """Layers of an image on this host, which become the root of programs."""

    image_id: str
    layers: tuple[str, ...]
    """Folders, relative to `folder`, the highest first."""
    folder: str
    owner: int
    """Uid that the files belong to."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One program and all that it is given. Every limit is set."""

    argv: tuple[str, ...]
    """EXEC: the absolute path of the program first. MAIN: the source, relative to the work folder, first."""
    env: Mapping[str, str]
    """The whole environment."""
    limits: Limits
    profile: str
    """Runtime profile whose workers it needs."""
    mode: Mode = Mode.EXEC
    files: tuple[InputFile, ...] = ()
    stdin: bytes = b""
    talks: bool = False
    """Its standard input is what `SandboxRun.feed` sends while it runs, in place of `stdin`; not for SERVE."""
    return_paths: tuple[str, ...] = ()
    entry: str = ""
    """SERVE: what serves."""
    reserves: int = 0
    """Bytes of address space that the runtime takes and does not use."""
    workspace: WorkspaceMount | None = None
    image: ImageMount | None = None
    """Root that it sees; None: what the host has. Not MAIN, and without a workspace."""
    folder: str = ""
    """EXEC: folder that it starts in, of its image; empty: the work folder."""
    user: str = ""
    """User of its image that it runs as, `user[:group]`; empty: root."""
    entries: int = 0
    """Files and folders that it may make beyond the usual number, where they are counted."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of what a program did."""

    killed: Killed
    code: int
    """Exit code; 0 when a signal ended it."""
    signal: int
    """Signal that ended it; 0 when it ended by itself."""
    stdout: Output
    stderr: Output
    files: tuple[OutputFile, ...] = ()
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    oom_kills: int = 0
    """Processes that the kernel killed for the memory limit."""
    denied_forks: int = 0
    """Forks that the kernel denied for the process limit."""
    outside_kills: int = 0
    """Processes that the kernel killed for want of memory, of which the program had not used too much."""


def counts_of(ended: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Report that the init of a box counts: `ended` is what it says at the end of a use."""
    return {name: ended[name] for name in ("wall_s", "cpu_s", "peak_bytes", "oom_kills", "denied_forks")}


Observe = Callable[[Stream, bytes], None]
"""Is given output as it is read."""
Take = Callable[[Report, int], Awaitable[None]]
"""Is given a socket, when all else is dead, that answers `{"type": "folder", "path"}` with the descriptor of a folder
of the work folder; both stay until it returns."""


class SandboxFailure(Exception):
    """A sandbox did not do its job. `stage` names the step; `started` whether the program may have run."""

    def __init__(self, stage: str, number: int, text: str, *, started: bool) -> None:
        super().__init__(f"the sandbox failed at '{stage}': {text}")
        self.stage = stage
        self.number = number
        self.started = started


class ZygoteEnded(SandboxFailure):
    """The zygote that was asked for a box had died: another one is being loaded."""
