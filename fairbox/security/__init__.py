"""Who may call: TLS, tokens by role, identities. One package for servers and clients of all tiers.

It knows no service: each says which role may call what.
"""

from __future__ import annotations

from fairbox.security.client import CLIENT_VARIABLES, PLAINTEXT, ClientSecurity, client_security
from fairbox.security.roles import ANYONE, Identity, Role, TenantRefused, current_identity, still_permitted
from fairbox.security.server import PortGuard, ServerSecurity, ServerSecuritySettings, security_metrics

__all__ = [
    "ANYONE",
    "CLIENT_VARIABLES",
    "PLAINTEXT",
    "ClientSecurity",
    "Identity",
    "PortGuard",
    "Role",
    "ServerSecurity",
    "ServerSecuritySettings",
    "TenantRefused",
    "client_security",
    "current_identity",
    "security_metrics",
    "still_permitted",
]
