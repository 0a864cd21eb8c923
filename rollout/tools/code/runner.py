"""Runs programs of trajectories at the executor, each in a sandbox of its own, or in the task's workspace.

A task names its workspace in the options of the tool, `{"workspace": {"local_path": "/srv/repos/jinja", "commit":
"ada0a9a6"}}`, with the fields of PrepareWorkspace. Preparing is idempotent and shared by all trajectories, so each asks
for its own. In place of it a task may name an image, `{"image": "python:3.12"}`, which the executor has.

Invariants: each program runs under a lease where the global limit is on; what the program could not have caused is an
InfraError, after a second attempt; nothing is kept from one program to the next but the workspace's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from executor_service import Limits, NotFound
from fairbox.errors import FairboxError
from limiter import LeaseLike
from rollout.tools.base import InfraError
from rollout.tools.code.client import BadProgram, CodeClient, CodeOutcome, RetryableError, SlotPool

_SOURCES = ("local_path", "remote_url", "bundle")
_FIELDS = (*_SOURCES, "commit", "mount_path")
_IDLE_TTL_S = 3600.0
"""A workspace is kept so long after its last use: a turn of the engine may take minutes."""
PROBE_S = 10.0
"""Wall time of a program that does nothing: a service that needs longer is not of use yet."""


@dataclass(slots=True)
class _Workspace:
    source: Mapping[str, Any]
    workspace_id: str


class Runner(Protocol):
    """Runs the code of a tool's calls: as programs or sessions at an executor, or at another service. Each
    trajectory is created before its first call, and released once."""

    @property
    def client(self) -> SlotPool:
        """The workers and leases that it runs code under."""
        ...

    @property
    def sessions(self) -> int:
        """Sessions that are alive."""
        ...

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares for a trajectory, whose task has these options. Raises InfraError."""
        ...

    async def run(self, trajectory_id: str, code: str, timeout: float) -> CodeOutcome:
        """Runs a program or a cell for at most `timeout` seconds. Raises BadProgram and InfraError."""
        ...

    async def probe(self) -> None:
        """Runs a program that does nothing. Raises InfraError if the service does not run it."""
        ...

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Gives the branches a copy of the trajectory's state. Raises BranchRefused and InfraError."""
        ...

    async def release(self, trajectory_id: str) -> None:
        """Ends what the trajectory has. Idempotent. Raises InfraError."""
        ...

    async def close(self) -> None:
        """Ends what trajectories have left."""
        ...


class CodeRunner:
    """Programs of trajectories, without state between them."""

    def __init__(self, client: CodeClient) -> None:
        self.client = client
        self._workspaces: dict[str, _Workspace] = {}
        """Trajectory id -> its workspace, for trajectories that have one."""
        self._images: dict[str, str] = {}
        """Trajectory id -> its image, for trajectories that have one."""

    @property
    def sessions(self) -> int:
        """Sessions that are alive."""
        return 0

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares the workspace, if the task names one. Raises InfraError: the model could have caused nothing."""
        source, image = options.get("workspace"), options.get("image", "")
        if not isinstance(image, str) or (image and (source is not None or self.client.config.mode == "session")):
            raise InfraError(f"the task's image is {image!r}, must be a name, without a workspace or mode session")
        if image:
            self._images[trajectory_id] = image
        if source is None:
            return
        problem = _problem(source)
        if problem is not None:
            raise InfraError(f"the task's workspace {problem}")
        self._workspaces[trajectory_id] = _Workspace(dict(source), await self._prepare(source))

    async def run(self, trajectory_id: str, code: str, timeout: float) -> CodeOutcome:
        """Raises BadProgram and InfraError."""
        # A second attempt is safe: a program reaches nothing outside its own sandbox, and nobody has seen a result of
        # the first one.
        return await self.client.attempts(lambda unbound: self._program(trajectory_id, code, timeout, unbound))

    async def probe(self) -> None:
        """Runs a program that does nothing, under a lease as any other. Raises InfraError."""
        try:
            async with self.client.slot() as slot:
                await self.client.execute("pass", slot, PROBE_S, language="python", limits=Limits(wall_time_s=PROBE_S))
        except FairboxError as error:
            raise error if isinstance(error, InfraError) else InfraError(str(error)) from error

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """The branches have the same workspace or image. Raises BranchRefused and InfraError."""
        workspace = self._workspaces.get(trajectory_id)
        if workspace is not None:
            self._workspaces |= {branch: replace(workspace) for branch in branches}
        if image := self.image(trajectory_id):
            self._images |= dict.fromkeys(branches, image)

    async def release(self, trajectory_id: str) -> None:
        """Forgets workspace and image; the executor removes a workspace when nobody uses it. Idempotent."""
        self._workspaces.pop(trajectory_id, None)
        self._images.pop(trajectory_id, None)

    async def close(self) -> None:
        """Ends what trajectories have left."""

    async def _program(self, trajectory_id: str, code: str, timeout: float, unbound: LeaseLike | None) -> CodeOutcome:
        client, config, workspace_id = self.client, self.client.config, self.workspace_id(trajectory_id)
        began = client.clock.now()
        try:
            async with client.slot(unbound) as slot:
                result = await client.execute(
                    code,
                    slot,
                    timeout,
                    language=config.language,
                    limits=Limits(wall_time_s=timeout, memory_bytes=config.memory_limit_bytes),
                    workspace_id=workspace_id,
                    workspace_read_only=bool(workspace_id) and config.workspace_read_only,
                    image=self.image(trajectory_id),
                )
                return client.outcome(result, slot, began)
        except (BadProgram, RetryableError):
            raise
        except NotFound as error:
            await self.renew_workspace(trajectory_id)
            raise RetryableError(str(error)) from error
        except FairboxError as error:
            raise RetryableError(str(error)) from error

    def workspace_id(self, trajectory_id: str) -> str:
        """Empty when the trajectory has none."""
        workspace = self._workspaces.get(trajectory_id)
        return "" if workspace is None else workspace.workspace_id

    def image(self, trajectory_id: str) -> str:
        """Empty when the trajectory has none."""
        return self._images.get(trajectory_id, "")

    async def renew_workspace(self, trajectory_id: str) -> None:
        """Prepares it again, if there is one: the executor has removed it, as nothing had used it for long."""
        workspace = self._workspaces.get(trajectory_id)
        if workspace is not None:
            workspace.workspace_id = await self._prepare(workspace.source)

    async def _prepare(self, source: Mapping[str, Any]) -> str:
        try:
            workspace = await self.client.executor.prepare_workspace(**source, idle_ttl_s=_IDLE_TTL_S)
        except FairboxError as error:
            raise RetryableError(f"the task's workspace can't be prepared: {error}") from error
        return workspace.workspace_id


def _problem(source: Any) -> str | None:
    if not isinstance(source, Mapping):
        return f"is {source!r}, must be a mapping"
    unknown = [name for name in source if name not in _FIELDS]
    if unknown:
        return f"has {', '.join(map(repr, unknown))}, which is none of {', '.join(_FIELDS)}"
    if len([name for name in _SOURCES if source.get(name)]) != 1:
        return f"must have one source, one of {', '.join(_SOURCES)}"
    return None
