"""What a launcher is told about the run, and what it answers, as types. They exist for the type checker alone.

The bytes of the `run` frame are, one after the other: the seccomp program, the standard input, and each file.
"""

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

        attach: list[str]
        oom: str
        processes: str
        cpu: str
        peak: str

    class Spec(TypedDict):
        """Head of the `run` frame."""

        type: Literal["run"]
        uid: int
        binds: list[str]
        links: list[tuple[str, str]]
        etc: dict[str, str]
        work: str
        disk_bytes: int
        inodes: int
        seccomp_size: int
        stdin_size: int
        files: list[FileEntry]
        argv: list[str]
        env: dict[str, str]
        rlimits: dict[str, int]
        wall_time_s: float
        cpu_time_s: float
        memory_bytes: int
        groups: Groups
        return_paths: list[str]
        return_bytes: int

    class FileAnswer(TypedDict):
        path: str
        status: Literal["returned", "missing", "not_regular", "too_large", "unreadable"]
        size: int

    class Ended(TypedDict):
        """Head of the `ended` frame. Its bytes are the returned files, in order."""

        type: Literal["ended"]
        code: int
        signal: int
        reason: Literal["", "wall", "cpu", "memory", "processes", "asked"]
        wall_s: float
        cpu_s: float
        peak_bytes: int
        oom_kills: int
        denied_forks: int
        files: list[FileAnswer]

    class Failed(TypedDict):
        """Head of the `failed` frame: a stage that did not work; the program was not started."""

        type: Literal["failed"]
        stage: str
        errno: int
        error: str
