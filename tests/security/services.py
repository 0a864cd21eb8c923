"""Real limiters that ask for TLS and tokens, and what clients need for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbox.security import ClientSecurity, Role
from limiter.config import LimiterConfig
from limiter.server import LimiterServer
from tests.security.authority import Authority, Files

ANYWHERE = "127.0.0.1:0"
TOKENS = {role: role.value[0] * 24 for role in Role}
TENANT_TOKEN = "tenant-token-0123456789"
"""Token of a client of the tenant `team`."""


@dataclass(frozen=True)
class Secrets:
    """An authority, a server's certificate, a client's, and files of tokens: `folder/client`, and so on."""

    folder: Path
    authority: Authority
    server: Files
    client: Files

    @classmethod
    def make(cls, folder: Path) -> Secrets:
        authority = Authority(folder)
        made = cls(folder, authority, authority.sign("server"), authority.sign("client"))
        for role, token in TOKENS.items():
            made.tokens(role).write_text(f"{token}\n")
            (folder / f"{role}.token").write_text(f"{token}\n")
        made.tokens(Role.CLIENT).write_text(f"{TOKENS[Role.CLIENT]}\nteam:{TENANT_TOKEN}\n")
        (folder / "team.token").write_text(TENANT_TOKEN)
        return made

    def tokens(self, role: Role) -> Path:
        """The file with all tokens of a role, for servers."""
        return self.folder / f"{role}.tokens"

    def security(self, who: str = "client", *, mutual: bool = True, tls: bool = True) -> ClientSecurity:
        """As a client of that role, or `team`; "": without a token."""
        return ClientSecurity(
            tls_ca=str(self.authority.ca) if tls else "",
            tls_cert=str(self.client.cert) if tls and mutual else "",
            tls_key=str(self.client.key) if tls and mutual else "",
            token_file=str(self.folder / f"{who}.token") if who else "",
        )

    def server_settings(self, *, tls: bool = True, mutual: bool = True) -> dict[str, Any]:
        """Settings of a limiter; an executor has no executor_token_file."""
        settings = {f"{role}_token_file": str(self.tokens(role)) for role in Role}
        if tls:
            settings |= {"tls_cert": str(self.server.cert), "tls_key": str(self.server.key)}
        if tls and mutual:
            settings["tls_client_ca"] = str(self.authority.ca)
        return settings


@asynccontextmanager
async def guarded_limiter(secrets: Secrets, **settings: Any) -> AsyncIterator[LimiterServer]:
    """A limiter in this process that asks for certificates and tokens, but for what `settings` say."""
    everything: dict[str, Any] = {
        "listen": ANYWHERE,
        "admin_listen": ANYWHERE,
        "health_listen": ANYWHERE,
        "metrics_listen": "",
    }
    everything |= secrets.server_settings() | {"fresh": True} | settings
    async with LimiterServer(LimiterConfig(**everything)) as server:
        yield server
