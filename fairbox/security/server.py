"""What guards the ports of a service: TLS, tokens, and the start rule. Settings first, then what they make.

Invariants: a port beyond loopback is guarded by tokens or by certificates of clients, or its operator has said
`insecure`; what is in force can be told at any moment by `facts()`, which never holds a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ssl import SSLContext

import grpc
import grpc.aio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from fairbox.clock import Clock
from fairbox.errors import ConfigError
from fairbox.security.access import AccessInterceptor, AccessRules, Denial
from fairbox.security.roles import Role
from fairbox.security.tls import ServerTls
from fairbox.security.tokens import Keyring
from fairbox.settings import setting
from fairbox.v1.common_pb2 import RoleTokens, SecurityStatus

__all__ = [
    "PortGuard",
    "ServerSecurity",
    "ServerSecuritySettings",
    "security_metrics",
]


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
    """What one port has. `PortGuard()`: nothing."""

    tls: ServerTls | None = None
    access: AccessInterceptor | None = None
    max_connections: int = 4096
    harmless: bool = False
    """What the port answers needs no guard, beside others that have one."""

    @property
    def guarded(self) -> bool:
        """Whether strangers are kept out."""
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
        """Whether every port that was made keeps strangers out."""
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
