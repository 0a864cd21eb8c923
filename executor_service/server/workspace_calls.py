"""PrepareWorkspace: checks a request, has it prepared, answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from executor_service.sandbox.report import WorkspaceMount
from executor_service.server.workspace_request import check_prepare
from executor_service.server.workspaces import Workspaces
from executor_service.v1 import executor_pb2 as pb

__all__ = ["WorkspaceCalls", "WorkspacesNotOffered"]


class WorkspacesNotOffered(Exception):  # noqa: N818 - a fact about this server
    """Programs run where nothing can be mounted: elsewhere, or at a level without namespaces."""


class WorkspaceCalls:
    """What the service needs of workspaces."""

    def __init__(
        self, workspaces: Workspaces, remotes: Sequence[str], visible: Sequence[str], *, name: str, offered: bool
    ) -> None:
        self._workspaces = workspaces
        self._remotes = remotes
        self._visible = visible
        self._name = name
        self._offered = offered

    async def prepare(self, request: pb.PrepareWorkspaceRequest) -> pb.PrepareWorkspaceResponse:
        """Raises WorkspacesNotOffered and what `check_prepare` and `Workspaces.prepare` raise."""
        self._check_offered()
        valid = check_prepare(request, remotes=self._remotes, visible=self._visible)
        prepared = await self._workspaces.prepare(valid)
        return pb.PrepareWorkspaceResponse(
            workspace_id=prepared.facts["workspace_id"],
            commit=prepared.facts["commit"],
            size_bytes=prepared.facts["size_bytes"],
            cached=prepared.cached,
            served_by=self._name,
        )

    def hold(self, workspace_id: str) -> AbstractContextManager[WorkspaceMount | None]:
        """See `Workspaces.hold`. Raises WorkspacesNotOffered too: workspaces of a former life may be there."""
        if workspace_id:
            self._check_offered()
        return self._workspaces.hold(workspace_id)

    def _check_offered(self) -> None:
        if not self._offered:
            raise WorkspacesNotOffered("workspaces need programs that run here, at isolation level namespaces")
