"""PrepareWorkspace: checks a request, has it prepared, answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from executor_service.errors import WorkspaceTooLarge
from executor_service.guest.walls.copies import MOST_ENTRIES
from executor_service.model import Limits
from executor_service.sandbox.report import WorkspaceMount
from executor_service.v1 import executor_pb2 as pb
from executor_service.workspaces.request import check_prepare
from executor_service.workspaces.table import Workspaces

if TYPE_CHECKING:
    from executor_service.workspaces.prepare.spec import Facts


class WorkspaceCalls:
    """Workspace calls of the service. `copy_bytes`: the most bytes of a copy for one use; 0: they are mounted."""

    def __init__(
        self,
        workspaces: Workspaces,
        remotes: Sequence[str],
        visible: Sequence[str],
        *,
        name: str,
        copy_bytes: int,
    ) -> None:
        self._workspaces = workspaces
        self._remotes = remotes
        self._visible = visible
        self._name = name
        self._copy_bytes = copy_bytes

    async def prepare(self, request: pb.PrepareWorkspaceRequest) -> pb.PrepareWorkspaceResponse:
        """Raises what `check_prepare` and `Workspaces.prepare` raise."""
        valid = check_prepare(request, remotes=self._remotes, visible=self._visible)
        prepared = await self._workspaces.prepare(valid)
        return pb.PrepareWorkspaceResponse(
            workspace_id=prepared.facts["workspace_id"],
            commit=prepared.facts["commit"],
            size_bytes=prepared.facts["size_bytes"],
            cached=prepared.cached,
            served_by=self._name,
        )

    def hold(self, workspace_id: str, tenant: str, limits: Limits) -> AbstractContextManager[WorkspaceMount | None]:
        """See `Workspaces.hold`. Raises WorkspaceTooLarge too."""
        most_bytes = min(self._copy_bytes, limits.disk_bytes)
        if workspace_id and self._copy_bytes:
            _check_copy(workspace_id, self._workspaces.facts(workspace_id, tenant), most_bytes)
        return self._workspaces.hold(workspace_id, tenant, most_bytes)

    def status(self) -> pb.WorkspaceStatus:
        """For GetStatus."""
        status = self._workspaces.status()
        status.max_copy_bytes, status.max_copy_entries = self._copy_bytes, MOST_ENTRIES if self._copy_bytes else 0
        return status


def _check_copy(name: str, facts: Facts, most_bytes: int) -> None:
    if facts["disk_bytes"] > most_bytes or facts["entries"] > MOST_ENTRIES:
        raise WorkspaceTooLarge(
            f"workspace {name!r} takes {facts['disk_bytes']} bytes with {facts['entries']} files and folders, and at "
            f"isolation level landlock each use gets a copy: at most {most_bytes} bytes (the lesser of the setting "
            f"workspace_copy_bytes and limits.disk_bytes) and {MOST_ENTRIES} files and folders"
        )
