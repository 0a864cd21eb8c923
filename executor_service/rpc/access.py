"""Who may call what of the executor, and whose requests a token may bring.

A client's token may be for one tenant: its requests are that tenant's, whether they say so or not, and sessions of
others do not exist for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from executor_service.v1 import executor_pb2 as pb
from fairbox.security import Role, current_identity

_CLIENT, _ANY = frozenset({Role.CLIENT}), frozenset({Role.CLIENT, Role.ADMIN})
_SERVICE = "/executor_service.v1.ExecutorService/"
ACCESS: Mapping[str, frozenset[Role]] = {
    _SERVICE: _CLIENT,
    f"{_SERVICE}GetStatus": _ANY,
    f"{_SERVICE}ListSessions": _ANY,
    f"{_SERVICE}DeleteSession": _ANY,
}
"""Roles that may call each method: an operator may show or end work of others as well, and runs nothing."""
Request = TypeVar(
    "Request",
    pb.ExecuteCodeRequest,
    pb.VerifyCodeRequest,
    pb.CreateSessionRequest,
    pb.ListSessionsRequest,
    pb.PrepareWorkspaceRequest,
)


def own(request: Request) -> Request:
    """The request, with the tenant of its caller's token where it names none. Raises TenantRefused for another one."""
    tenant = current_identity().for_tenant(request.tenant)
    if tenant != request.tenant:
        request.tenant = tenant
    return request
