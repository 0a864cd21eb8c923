"""Decides whether a call may be made, by its method and its metadata. Pure.

Invariants: a refusal names what is needed, and never holds what was given; a method that no rule names needs a token
all the same, so that nothing opens by being forgotten. It does not look into requests: fields, such as a tenant or the
kind of a session, are their service's to check against the identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairbox.security.roles import Identity, Role
from fairbox.security.table import TokenTable

__all__ = ["AccessRules", "Denial", "Refusal", "decide"]

_HEADER = "authorization"
Metadata = Iterable[tuple[str, str | bytes]]


class Denial(StrEnum):
    """Which gRPC status a refusal has."""

    UNAUTHENTICATED = "UNAUTHENTICATED"
    """No token, or one that is not known: nobody knows who calls."""
    PERMISSION_DENIED = "PERMISSION_DENIED"
    """A good token of a role that may not do this."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not made."""

    denial: Denial
    message: str


@dataclass(frozen=True)
class AccessRules:
    """Who may call what on one port. `methods` are `/package.Service/Method` or, for all others of a service,
    `/package.Service/`; what neither names, such as reflection, is open to every role that has tokens here."""

    methods: Mapping[str, frozenset[Role]]

    def roles_for(self, method: str) -> frozenset[Role]:
        """Those of which the caller needs one."""
        service = method[: method.rfind("/") + 1]
        return self.methods.get(method) or self.methods.get(service) or frozenset(Role)


def decide(method: str, metadata: Metadata, table: TokenTable, rules: AccessRules) -> Identity | Refusal:
    """Who makes the call, or why it is not made. `metadata` must hold `authorization: Bearer TOKEN` exactly once."""
    given = [value for key, value in metadata if key == _HEADER]
    allowed = rules.roles_for(method)
    needed = " or ".join(role for role in Role if role in allowed)
    if not given:
        text = f"this call needs a token of the role {needed}, in the metadata `authorization: Bearer TOKEN`"
        return Refusal(Denial.UNAUTHENTICATED, text)
    scheme, _, token = str(given[0]).partition(" ")
    identity = table.find(token.strip()) if len(given) == 1 and scheme.lower() == "bearer" else None
    if identity is None:
        text = f"authorization is not `Bearer` and a token that is known here; this call needs one of the role {needed}"
        return Refusal(Denial.UNAUTHENTICATED, text)
    if not identity.roles & allowed:
        has = " and ".join(role for role in Role if role in identity.roles)
        text = f"this call needs a token of the role {needed}; the one that was given has the role {has}"
        return Refusal(Denial.PERMISSION_DENIED, text)
    return identity
