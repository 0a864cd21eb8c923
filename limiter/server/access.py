"""Who may call what of the limiter, and what of that depends on the frames of a stream."""

from __future__ import annotations

from collections.abc import Mapping

from fairbox.security import Identity, Role
from limiter.core import SessionKind

__all__ = ["ADMIN_ACCESS", "SERVICE_ACCESS", "RoleRefused", "TokenRevoked", "check_kind"]

SERVICE_ACCESS: Mapping[str, frozenset[Role]] = {
    "/limiter.v1.LimiterService/Session": frozenset({Role.CLIENT, Role.EXECUTOR}),
    "/limiter.v1.LimiterService/": frozenset({Role.CLIENT}),
}
ADMIN_ACCESS: Mapping[str, frozenset[Role]] = {"/limiter.v1.LimiterAdminService/": frozenset({Role.ADMIN})}
_NEEDS = {SessionKind.CLIENT: Role.CLIENT, SessionKind.EXECUTOR: Role.EXECUTOR}


class RoleRefused(Exception):  # noqa: N818 - a decision
    """A session is of a kind that the token's role may not open. The text names the field and what is needed."""


class TokenRevoked(Exception):  # noqa: N818 - a decision
    """The token with which a stream was opened is not good any more."""


def check_kind(kind: SessionKind, identity: Identity) -> None:
    """Raises RoleRefused. Binds need no check of their own: only an executor's session may send them."""
    needed = _NEEDS[kind]
    if not identity.has(needed):
        raise RoleRefused(f"hello.kind is {kind}, which needs a token of the role {needed}")
