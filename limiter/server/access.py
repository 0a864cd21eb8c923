"""Who may call what of the limiter, and what of that depends on the frames of a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fairbox.security import Identity, Role
from limiter.core import SessionKind

UNARY_PREFIX = "unary:"
"""Sessions that the server makes for unary calls; streams may not use it."""


SERVICE_ACCESS: Mapping[str, frozenset[Role]] = {
    "/limiter.v1.LimiterService/Session": frozenset({Role.CLIENT, Role.EXECUTOR}),
    "/limiter.v1.LimiterService/": frozenset({Role.CLIENT}),
}
ADMIN_ACCESS: Mapping[str, frozenset[Role]] = {"/limiter.v1.LimiterAdminService/": frozenset({Role.ADMIN})}
_NEEDS = {SessionKind.CLIENT: Role.CLIENT, SessionKind.EXECUTOR: Role.EXECUTOR}


class RoleRefused(Exception):
    """A session is of a kind that the token's role may not open. The text names the field and what is needed."""


class TokenRevoked(Exception):
    """The token with which a stream was opened is not good any more."""


def check_kind(kind: SessionKind, identity: Identity) -> None:
    """Raises RoleRefused. Binds need no check of their own: only an executor's session may send them."""
    needed = _NEEDS[kind]
    if not identity.has(needed):
        raise RoleRefused(f"hello.kind is {kind}, which needs a token of the role {needed}")


def unary_session(client_id: str, identity: Identity) -> str:
    """The session of unary calls under that client id. Tenants have names of their own: what one calls `me` is not what
    another does."""
    return _unary_prefix(identity) + client_id


def may_release(session_id: str, identity: Identity) -> bool:
    """Says whether a caller may give back a lease of that session. Ids of streams are random, so whoever knows one may
    use it; ids of unary calls can be guessed, and belong to their tenant."""
    return not session_id.startswith(UNARY_PREFIX) or session_id.startswith(_unary_prefix(identity))


def _unary_prefix(identity: Identity) -> str:
    if not identity.tenant:
        return UNARY_PREFIX
    return f"{UNARY_PREFIX}{hashlib.sha256(identity.tenant.encode()).hexdigest()[:8]}:"
