"""Decides whether a call may be made, by its method and its metadata, and stands before every call of a service.

Invariants: a refusal names what is needed, and never holds what was given; a method that no rule names needs a token
all the same, so that nothing opens by being forgotten. It does not look into requests: fields, such as a tenant or the
kind of a session, are their service's to check against the identity. A call is decided before any of its messages is
read, so that a stranger's bytes are not taken in, and once; a stream that outlives rotations asks again by itself; the
identity is that of the call's task and of those it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import grpc
import grpc.aio

from fairbox.clock import Clock, MonotonicClock
from fairbox.security.roles import Identity, Role, set_identity
from fairbox.security.tokens import Keyring, TokenTable

__all__ = [
    "AccessInterceptor",
    "AccessRules",
    "Denial",
    "Refusal",
    "decide",
]

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


_LOG = logging.getLogger("fairbox.security")
_LOG_EVERY_S = 10.0
"""Between two lines about refused calls: a flood of them must not become a flood of lines."""
_CODES = {
    Denial.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Denial.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a token that `rules` let through. `port` is the setting of the address, for the log."""

    def __init__(self, keyring: Keyring, rules: AccessRules, *, port: str, clock: Clock | None = None) -> None:
        self._keyring = keyring
        self._rules = rules
        self._port = port
        self._clock = clock or MonotonicClock()
        self._logged_at = float("-inf")
        self._unlogged = 0
        self.refused = dict.fromkeys(Denial, 0)
        """Calls refused since the start."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Hands the call on, or answers it with the refusal."""
        details: Any = handler_call_details
        method, metadata = details.method, details.invocation_metadata or ()
        verdict = decide(method, metadata, self._keyring.table(), self._rules)
        if isinstance(verdict, Refusal):
            self._count(verdict)
            return _refusing(verdict)
        set_identity(verdict, lambda: decide(method, metadata, self._keyring.table(), self._rules) == verdict)
        return await continuation(handler_call_details)

    def _count(self, refusal: Refusal) -> None:
        self.refused[refusal.denial] += 1
        self._unlogged += 1
        now = self._clock.now()
        if now - self._logged_at >= _LOG_EVERY_S:
            _LOG.warning("%s: %d calls were refused, the last one: %s", self._port, self._unlogged, refusal.message)
            self._logged_at, self._unlogged = now, 0


def _refusing(refusal: Refusal) -> grpc.RpcMethodHandler[Any, Any]:
    """Streaming both ways, whatever the method is: such a handler starts before a message has come."""

    async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(_CODES[refusal.denial], refusal.message)

    return grpc.stream_stream_rpc_method_handler(refuse)
