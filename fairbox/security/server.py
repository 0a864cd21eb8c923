"""Guards the ports of a service: TLS, tokens, and the start rule.

Invariants: a port beyond loopback is guarded by tokens or by certificates of clients, or its operator has said
`insecure`; what is in force can be told at any moment by `facts()`, which never holds a token.

A call is decided by its method and its metadata, before any of its messages is read, so that a stranger's bytes are not
taken in, and once; a stream that outlives rotations asks again by itself. A refusal names what is needed, and never
holds what was given; a method that no rule names needs a token all the same, so that nothing opens by being forgotten.
It does not look into requests: fields, such as a tenant or the kind of a session, are their service's to check against
the identity, which is that of the call's task and of those it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ssl import SSLContext
from typing import Any

import grpc
import grpc.aio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import ConfigError
from fairbox.security.roles import Identity, Role, set_identity
from fairbox.security.tls import ServerTls
from fairbox.security.tokens import Keyring, TokenTable
from fairbox.settings import setting
from fairbox.v1.common_pb2 import RoleTokens, SecurityStatus

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
        """Roles of which the caller needs one."""
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


@dataclass(frozen=True)
class ServerSecuritySettings:
    """Settings that all services have. Files are read again when they change."""

    tls_cert: str = setting("", help="File with the certificate and its chain (PEM): gRPC ports speak TLS alone.")
    tls_key: str = setting("", help="File with its key (PEM).")
    tls_client_ca: str = setting(
        "", help="File with authorities (PEM): clients must show a certificate of one of these."
    )
    client_token_file: str = setting(
        "", help="File with tokens of clients, TOKEN or TENANT:TOKEN in each line; empty: none is asked for."
    )
    admin_token_file: str = setting("", help="File with tokens of operators, one a line.")
    max_connections: int = setting(4096, help="Most connections at once to a gRPC port; one more is closed.")

    def validate_security(self) -> None:
        """ConfigError for settings that contradict each other. Reads no file."""
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key go together: set both, or none")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError(f"tls_client_ca is {self.tls_client_ca!r}, which needs tls_cert")
        if not 16 <= self.max_connections <= 1_000_000:
            raise ConfigError(f"max_connections is {self.max_connections}, must be from 16 to 1000000")


@dataclass(frozen=True, slots=True)
class PortGuard:
    """Guards of one port. `PortGuard()`: none."""

    tls: ServerTls | None = None
    access: AccessInterceptor | None = None
    max_connections: int = 4096
    harmless: bool = False
    """The port's answers need no guard, beside other ports that have one."""

    @property
    def guarded(self) -> bool:
        """True if strangers are kept out."""
        return self.harmless or self.access is not None or (self.tls is not None and self.tls.mutual)

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """For the server of the port."""
        return [] if self.access is None else [self.access]

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Adds the port, and returns its number. RuntimeError where it can't be had."""
        if self.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, self.tls.credentials())


class ServerSecurity:
    """Everything that guards one service; its ports share certificate and tokens."""

    def __init__(
        self, settings: ServerSecuritySettings, *, executor_token_file: str = "", clock: Clock | None = None
    ) -> None:
        """ConfigError for files that can't be used."""
        self._settings = settings
        self._tls: ServerTls | None = None
        if settings.tls_cert:
            self._tls = ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca, clock=clock)
        self._clock = clock
        self._keyring = Keyring(
            {
                Role.CLIENT: settings.client_token_file,
                Role.EXECUTOR: executor_token_file,
                Role.ADMIN: settings.admin_token_file,
            },
            clock=clock,
        )
        self._guards: list[PortGuard] = []

    def port(self, methods: Mapping[str, frozenset[Role]], *, needs: Role, setting: str) -> PortGuard:
        """The guard of the port with that `setting`. It asks for tokens where those of the role `needs` are there."""
        access = None
        if needs in self._keyring.roles:
            access = AccessInterceptor(self._keyring, AccessRules(methods), port=setting, clock=self._clock)
        guard = PortGuard(self._tls, access, self._settings.max_connections)
        self._guards.append(guard)
        return guard

    def https(self) -> SSLContext:
        """For a port that speaks HTTPS with the same certificate. There must be one."""
        assert self._tls is not None
        return self._tls.https()

    @property
    def guarded(self) -> bool:
        """True if every port that was made keeps strangers out."""
        return all(guard.guarded for guard in self._guards)

    def facts(self) -> SecurityStatus:
        """At this instant. Looks at the files."""
        tls, table = self._tls, self._keyring.table()
        refused = [guard.access.refused for guard in self._guards if guard.access is not None]
        expires_at = 0.0 if tls is None else tls.expires_at
        problems = [self._keyring.problem, "" if tls is None else tls.problem]
        return SecurityStatus(
            tls=tls is not None,
            mutual_tls=tls is not None and tls.mutual,
            certificate_expires_at_s=expires_at,
            tokens=[RoleTokens(role=role, count=count) for role, count in table.counts.items()],
            unauthenticated_total=sum(counts[Denial.UNAUTHENTICATED] for counts in refused),
            denied_total=sum(counts[Denial.PERMISSION_DENIED] for counts in refused),
            problems=[problem for problem in problems if problem],
        )


def security_metrics(prefix: str, facts: SecurityStatus) -> Iterator[Metric]:
    """`prefix` like `fairbox_limiter`."""
    yield GaugeMetricFamily(
        f"{prefix}_certificate_expires_timestamp_seconds",
        "End of the certificate in use, seconds since 1970; 0: there is none.",
        facts.certificate_expires_at_s,
    )
    denied = CounterMetricFamily(
        f"{prefix}_calls_denied", "Calls refused for their token, since the start.", labels=["reason"]
    )
    denied.add_metric([Denial.UNAUTHENTICATED.name.lower()], facts.unauthenticated_total)
    denied.add_metric([Denial.PERMISSION_DENIED.name.lower()], facts.denied_total)
    yield denied
    yield GaugeMetricFamily(
        f"{prefix}_security_problems",
        "Certificates and files of tokens that changed and can't be used: what was read before stays.",
        len(facts.problems),
    )
