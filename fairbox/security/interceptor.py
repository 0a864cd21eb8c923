"""The thin shell of `decide()`: one interceptor for unary and streaming calls of a grpc.aio server.

Invariants: a call is decided before any of its messages is read, so that a stranger's bytes are not taken in, and once;
a stream that outlives rotations asks again by itself; the identity is that of the call's task and of those it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from fairbox.clock import Clock, MonotonicClock
from fairbox.security.access import AccessRules, Denial, Refusal, decide
from fairbox.security.keyring import Keyring
from fairbox.security.roles import set_identity

__all__ = ["AccessInterceptor"]

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
