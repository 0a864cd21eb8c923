"""Which workspace a trajectory's programs run in: the task names its source, the executor prepares it.

A task names it in the options of the tool, `{"workspace": {"local_path": "/srv/repos/jinja", "commit": "ada0a9a6"}}`,
with the fields of PrepareWorkspace. Preparing is idempotent and shared by all trajectories, so each asks for its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor_service import ExecutorClient
from fairbox.errors import FairboxError
from rollout.tools.base import InfraError

__all__ = ["TrajectoryWorkspaces"]

_SOURCES = ("local_path", "remote_url", "bundle")
_FIELDS = (*_SOURCES, "commit", "mount_path")
_IDLE_TTL_S = 3600.0
"""Kept so long after its last use: a turn of the engine may take minutes."""


@dataclass(slots=True)
class _Held:
    source: Mapping[str, Any]
    workspace_id: str


class TrajectoryWorkspaces:
    """The workspaces of the trajectories that have one."""

    def __init__(self, executor: ExecutorClient) -> None:
        self._executor = executor
        self._held: dict[str, _Held] = {}

    async def open(self, trajectory_id: str, source: Any) -> None:
        """Prepares it. Raises InfraError, because the model could have caused nothing here."""
        problem = _problem(source)
        if problem is not None:
            raise InfraError(f"the task's workspace {problem}")
        self._held[trajectory_id] = _Held(dict(source), await self._prepare(source))

    def id_of(self, trajectory_id: str) -> str:
        """Empty when the trajectory has none."""
        held = self._held.get(trajectory_id)
        return "" if held is None else held.workspace_id

    async def renew(self, trajectory_id: str) -> None:
        """Prepares it again: the executor has removed it, as nothing had used it for long. Raises InfraError."""
        held = self._held[trajectory_id]
        held.workspace_id = await self._prepare(held.source)

    def branch(self, trajectory_id: str, branches: Sequence[str]) -> None:
        """The branches have the same one."""
        held = self._held.get(trajectory_id)
        if held is not None:
            self._held |= {branch: _Held(held.source, held.workspace_id) for branch in branches}

    def release(self, trajectory_id: str) -> None:
        """Forgets it; the executor removes it when nobody uses it. Idempotent."""
        self._held.pop(trajectory_id, None)

    async def _prepare(self, source: Mapping[str, Any]) -> str:
        try:
            workspace = await self._executor.prepare_workspace(**source, idle_ttl_s=_IDLE_TTL_S)
        except FairboxError as error:
            raise InfraError(f"the task's workspace can't be prepared: {error}") from error
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
