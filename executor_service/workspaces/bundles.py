"""Lets git at a bundle that somebody has sent: in a sandbox, as a program of that somebody would run.

Invariants: git reads no byte of a bundle outside a sandbox; what that takes is bounded in memory, CPU time, processes
and files, and what is beyond a bound is the bundle's fault; what comes out of it never passes through the server, and
is copied by a process with limits of its own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from executor_service.model import InputFile, Limits, Outcome
from executor_service.programs.plans import Planner, mounted
from executor_service.programs.verdict import judge
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import Report, WorkspaceMount
from executor_service.workspaces import prepare
from executor_service.workspaces.folder import BUNDLE
from fairbox.errors import FieldError, FieldErrors

if TYPE_CHECKING:
    from executor_service.workspaces.prepare.spec import PreparationAnswer, PreparationTask

_MIB = 1 << 20
AT_ONCE = 8
"""Bundles that are read at once, each with one processor and what is below; half of them by tenants that read two."""
MOST_BYTES = 512 * _MIB
"""Most bytes of a bundle's files, which lie in memory while they are made. Larger workspaces come by a local_path."""
MOST_ENTRIES = 65_536
"""Files and folders of it."""
_LIMITS = Limits(
    wall_time_s=600.0,
    cpu_time_s=120.0,
    memory_bytes=MOST_BYTES + 1024 * _MIB,
    processes=32,
    open_files=1024,
    output_bytes=64 << 10,
    file_bytes=MOST_BYTES,
    # Beside the files there are the bundle's objects, twice.
    disk_bytes=MOST_BYTES + 256 * _MIB,
    return_bytes=0,
)
_GIT_BYTES = 1024 * _MIB
"""Address space of one git: it says itself what it had no memory for."""
_TARGET = "/bundle"
"""Path of the folder with the bundle inside the sandbox."""
_PROGRAM = tuple(
    InputFile(f"executor_service/workspaces/prepare/{path.name}", path.read_bytes())
    for path in sorted(Path(prepare.__path__[0]).glob("*.py"))
)
Adopt = Callable[[bytes, int], Awaitable["PreparationAnswer"]]
"""Makes a workspace of what the preparation in the sandbox has said, and of the folder that the socket gives."""


async def unbundle(
    boxes: SandboxPool, planner: Planner, task: PreparationTask, folder: str, size: int, adopt: Adopt
) -> PreparationAnswer:
    """Does `task` with the bundle of `size` bytes in `folder`, relative to the host's store.

    Raises FieldErrors for a bundle that takes too much, and SandboxFailure.
    """
    inside: PreparationTask = {
        **task,
        "kind": "bundle",
        "source": BUNDLE,
        "folder": "made",
        "roots": [],
        "mirror": "",
        "memory_bytes": _GIT_BYTES,
    }
    plan = planner.preparation(_PROGRAM, json.dumps(inside).encode(), _LIMITS, MOST_ENTRIES)
    # Where it has to be copied, with what a folder takes.
    plan = mounted(plan, WorkspaceMount(folder, _TARGET, most_bytes=size + _MIB), read_only=True)
    answers: list[PreparationAnswer] = []

    async def take(report: Report, reader: int) -> None:
        if judge(report, _LIMITS)[0] in (Outcome.FINISHED, Outcome.NONZERO_EXIT):
            answers.append(await adopt(report.stdout.data, reader))

    async with boxes.take(plan) as sandbox:
        report = await sandbox.run(take=take)
    if not answers:
        said = judge(report, _LIMITS, "git that reads it")[2] or "git has failed without a word"
        raise FieldErrors([FieldError("bundle", f"can't be read: {said}")])
    return answers[0]
