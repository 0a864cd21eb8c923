"""Who calls: the roles that a token can have, and the identity of one call.

Invariants: an identity is a fact about one call and is never stored longer; it holds no token. It decides nothing:
`fairbox.security.server` does, and `for_tenant` is what services ask about a field.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Purpose of a token. Roles don't contain each other; a token that is in two files has both."""

    CLIENT = "client"
    """Asks for leases, and has programs run."""
    EXECUTOR = "executor"
    """Registers with the limiter as an executor, and binds leases."""
    ADMIN = "admin"
    """Sees and changes what belongs to everybody: buckets, leases, sessions."""


class TenantRefused(Exception):
    """A request names a tenant that its token is not for. The text names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of who makes a call, as far as it is known."""

    roles: frozenset[Role]
    tenant: str = ""
    """The only one that its requests may be for; empty: any."""

    def has(self, role: Role) -> bool:
        """Says whether it may do what that role may."""
        return role in self.roles

    def for_tenant(self, given: str, field: str = "tenant") -> str:
        """The tenant of a request whose `field` says `given`: filled in where it is empty. Raises TenantRefused."""
        if not self.tenant or given == self.tenant:
            return given
        if given:
            raise TenantRefused(f"{field} is {given[:128]!r}, must be empty or {self.tenant!r}, which the token is for")
        return self.tenant


ANYONE = Identity(frozenset(Role))
"""Identity of whoever calls a port that asks for no token."""
_CURRENT: ContextVar[Identity] = ContextVar("fairbox_identity", default=ANYONE)
_STILL: ContextVar[Callable[[], bool]] = ContextVar("fairbox_still_permitted", default=lambda: True)


def current_identity() -> Identity:
    """Who makes the call that this task handles, and the tasks that it has started."""
    return _CURRENT.get()


def still_permitted() -> bool:
    """Says whether the call that this task handles would be let in now: its token may have been removed from the file.
    For streams, which outlive rotations."""
    return _STILL.get()()


def set_identity(identity: Identity, still: Callable[[], bool]) -> None:
    """For the interceptor, which runs in the task of the call."""
    _CURRENT.set(identity)
    _STILL.set(still)
