"""Runs programs of trajectories at the executor, each in a sandbox of its own, or in the task's workspace.

A task names its workspace in the options of the tool, `{"workspace": {"local_path": "/srv/repos/jinja", "commit":
"ada0a9a6"}}`, with the fields of PrepareWorkspace. Preparing is idempotent and shared by all trajectories, so each asks
for its own. In place of it a task may name an image, `{"image": "python:3.12"}`, which the executor has, or fetches if
the name begins with `docker://`.

Invariants: each program runs under a lease where the global limit is on; what the program could not have caused is an
InfraError, after a second attempt; nothing is kept from one program to the next but the names of workspace and image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from executor_service import ExecutorClient, Limits, NotFound
from fairbox.errors import FairboxError
from limiter import LeaseLike
from rollout.tools.base import InfraError
from rollout.tools.code.client import BadProgram, CodeClient, CodeOutcome, RetryableError

_REGISTRY = "docker://"
_SOURCES = ("local_path", "remote_url", "bundle")
_FIELDS = (*_SOURCES, "commit", "mount_path")
_IDLE_TTL_S = 3600.0
"""A workspace is kept so long after its last use: a turn of the engine may take minutes."""
PROBE_S = 10.0
"""Wall time of a program that does nothing: a service that needs longer is not of use yet."""


async def ready_image(executor: ExecutorClient, image: str) -> str:
    """Name to run programs in. An image `docker://NAME` is fetched, unless it is there. Raises what
    `ExecutorClient.prepare_image` does."""
    if not image.startswith(_REGISTRY):
        return image
    await executor.prepare_image(image)
    return image.removeprefix(_REGISTRY)


@dataclass(slots=True)
class _Workspace:
    source: Mapping[str, Any]
    workspace_id: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Image, variables and memory of a task's programs and sessions."""

    image: str = ""
    """Name of the image that is their root; empty: none."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables."""
    memory_mb: int | None = None
    """MiB of memory; None: what the tool's settings say."""


class Runner(ABC):
    """Runs the code of a tool's calls: as programs or sessions at an executor, or at another service. Each
    trajectory is created before its first call, and released once."""

    @abstractmethod
    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares for a trajectory, whose task has these options. Raises InfraError."""

    @abstractmethod
    async def run(self, trajectory_id: str, code: str, timeout: float) -> CodeOutcome:
        """Runs a program or a cell for at most `timeout` seconds. Raises BadProgram and InfraError."""

    @abstractmethod
    async def probe(self) -> None:
        """Runs a program that does nothing, under a lease as any other. Raises InfraError if the service does not run
        it."""

    async def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """Gives the branches a copy of the trajectory's state; programs have none. Raises BranchRefused and
        InfraError."""
        return

    async def release(self, trajectory_id: str) -> None:
        """Ends what the trajectory has. Idempotent. Raises InfraError."""
        return

    async def close(self) -> None:
        """Ends what trajectories have left."""
        return


class CodeRunner(Runner):
    """Programs of trajectories, without state between them."""

    def __init__(self, client: CodeClient) -> None:
        self.client = client
        self._workspaces: dict[str, _Workspace] = {}
        """Trajectory id -> its workspace, for trajectories that have one."""
        self._surroundings: dict[str, Surroundings] = {}
        """Trajectory id -> what its task names, for trajectories whose task names something."""

    async def create(self, trajectory_id: str, options: Mapping[str, Any]) -> None:
        """Prepares the workspace, if the task names one. Raises InfraError: the model could have caused nothing."""
        source = options.get("workspace")
        found = _surroundings(options)
        if found.image and (source is not None or self.client.config.mode == "session"):
            raise InfraError(
                f"the task's image is {found.image!r}, must be a name, without a workspace or mode session"
            )
        try:
            found = replace(found, image=await ready_image(self.client.executor, found.image))
        except FairboxError as error:
            raise InfraError(f"the task's image can't be had: {error}") from error
        if found != Surroundings():
            self._surroundings[trajectory_id] = found
        if source is None:
            return
        problem = _problem(source)
        if problem is not None:
            raise InfraError(f"the task's workspace {problem}")
        self._workspaces[trajectory_id] = _Workspace(dict(source), await self._prepare(source))

    async def run(self, trajectory_id: str, code: str, timeout: float) -> CodeOutcome:
        # A second attempt is safe: a program reaches nothing outside its own sandbox, and nobody has seen a result of
        # the first one.
        return await self.client.attempts(lambda unbound: self._program(trajectory_id, code, timeout, unbound))

    async def probe(self) -> None:
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
        if trajectory_id in self._surroundings:
            self._surroundings |= dict.fromkeys(branches, self.surroundings(trajectory_id))

    async def release(self, trajectory_id: str) -> None:
        """Forgets workspace and image; the executor removes a workspace when nobody uses it. Idempotent."""
        self._workspaces.pop(trajectory_id, None)
        self._surroundings.pop(trajectory_id, None)

    async def _program(self, trajectory_id: str, code: str, timeout: float, unbound: LeaseLike | None) -> CodeOutcome:
        client, config, workspace_id = self.client, self.client.config, self.workspace_id(trajectory_id)
        found = self.surroundings(trajectory_id)
        began = client.clock.now()
        try:
            async with client.slot(unbound) as slot:
                result = await client.execute(
                    code,
                    slot,
                    timeout,
                    language=config.language,
                    limits=Limits(wall_time_s=timeout, memory_bytes=self.memory_bytes(trajectory_id)),
                    workspace_id=workspace_id,
                    workspace_read_only=bool(workspace_id) and config.workspace_read_only,
                    image=found.image,
                    env=found.env,
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

    def surroundings(self, trajectory_id: str) -> Surroundings:
        """Image, variables and memory that the trajectory's task names."""
        return self._surroundings.get(trajectory_id, _NOTHING)

    def memory_bytes(self, trajectory_id: str) -> int:
        """Bytes of memory: as the settings say, else as the task does; 0: the executor's own limit."""
        return self.client.config.memory_limit_bytes or (self.surroundings(trajectory_id).memory_mb or 0) << 20

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


_NOTHING = Surroundings()


def _surroundings(options: Mapping[str, Any]) -> Surroundings:
    """Raises InfraError."""
    image, env, memory_mb = options.get("image", ""), options.get("env") or {}, options.get("memory_mb")
    if not isinstance(image, str):
        raise InfraError(f"the task's image is {image!r}, must be a name, without a workspace or mode session")
    if not isinstance(env, Mapping) or not all(isinstance(each, str) for pair in env.items() for each in pair):
        raise InfraError(f"the task's env is {env!r:.200}, must be texts by name")
    if memory_mb is not None and (not isinstance(memory_mb, int) or memory_mb < 1):
        raise InfraError(f"the task's memory_mb is {memory_mb!r:.80}, must be a whole number from 1, or none")
    return Surroundings(image, env, memory_mb)


def _problem(source: Any) -> str | None:
    if not isinstance(source, Mapping):
        return f"is {source!r}, must be a mapping"
    unknown = [name for name in source if name not in _FIELDS]
    if unknown:
        return f"has {', '.join(map(repr, unknown))}, which is none of {', '.join(_FIELDS)}"
    if len([name for name in _SOURCES if source.get(name)]) != 1:
        return f"must have one source, one of {', '.join(_SOURCES)}"
    return None
