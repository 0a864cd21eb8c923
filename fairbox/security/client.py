"""How a client proves who it is, and knows whom it talks to.

Invariants: without `tls_ca` nothing is encrypted, and then a token goes to loopback alone unless `plaintext_token` says
otherwise; nothing here holds what is in the files.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fairbox.errors import ConfigError
from fairbox.settings import setting

__all__ = ["PLAINTEXT", "ClientSecurity", "client_security", "is_local"]

SYSTEM = "system"
"""As `tls_ca`: the authorities that gRPC itself trusts."""
_SCHEME = re.compile(r"(?:dns|ipv4|ipv6):(?://[^/]*/)?")
_YES, _NO = ("true", "1", "yes"), ("", "false", "0", "no")


@dataclass(frozen=True)
class ClientSecurity:
    """Files and rules of a client. All files are read again when they change."""

    tls_ca: str = setting("", help="File with the authorities to trust (PEM), or system; empty: no TLS.")
    tls_cert: str = setting("", help="File with the client's own certificate (PEM), where servers ask for one.")
    tls_key: str = setting("", help="File with its key (PEM).")
    tls_server_name: str = setting("", help="Name in the server's certificate, where it is not that of the target.")
    token_file: str = setting("", help="File with the token, in its first line; empty: none.")
    plaintext_token: bool = setting(False, help="Send the token beyond loopback without TLS.")

    def validate(self, prefix: str = "") -> None:
        """ConfigError for settings that contradict each other. `prefix` is what their names begin with."""
        says = {name: _named(prefix, name) for name in ("tls_ca", "tls_cert", "tls_key", "tls_server_name")}
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ConfigError(f"{says['tls_cert']} and {says['tls_key']} go together: set both, or none")
        for name in ("tls_cert", "tls_server_name"):
            if getattr(self, name) and not self.tls_ca:
                raise ConfigError(f"{says[name]} is {getattr(self, name)!r}, which needs {says['tls_ca']}")

    @property
    def plain(self) -> bool:
        """Whether there is neither TLS nor a token."""
        return not (self.tls_ca or self.token_file)

    def check_target(self, target: str) -> None:
        """ConfigError where the token would cross a network in the clear."""
        if self.token_file and not self.tls_ca and not self.plaintext_token and not is_local(target):
            raise ConfigError(
                f"token_file is set, and the token would go to {target} in the clear: set tls_ca, or "
                "plaintext_token=true where something else protects the connection"
            )


PLAINTEXT = ClientSecurity()
"""No TLS, no token."""


def client_security(env: Mapping[str, str] | None = None, *, admin: bool = False) -> ClientSecurity:
    """That of this process's environment: FAIRBOX_TLS_CA, FAIRBOX_TLS_CERT, FAIRBOX_TLS_KEY, FAIRBOX_TLS_SERVER_NAME,
    FAIRBOX_TOKEN_FILE and FAIRBOX_PLAINTEXT_TOKEN (true or false). With `admin`, FAIRBOX_ADMIN_TOKEN_FILE is the token,
    where it is set. ConfigError for values that contradict each other."""
    env = os.environ if env is None else env
    names = ("tls_ca", "tls_cert", "tls_key", "tls_server_name", "token_file")
    values = {name: env.get(f"FAIRBOX_{name.upper()}", "") for name in names}
    if admin:
        values["token_file"] = env.get("FAIRBOX_ADMIN_TOKEN_FILE", "") or values["token_file"]
    said = env.get("FAIRBOX_PLAINTEXT_TOKEN", "").lower()
    if said not in _YES + _NO:
        raise ConfigError(f"FAIRBOX_PLAINTEXT_TOKEN is {said!r}, must be true or false")
    security = ClientSecurity(**values, plaintext_token=said in _YES)
    security.validate("FAIRBOX_")
    return security


def _named(prefix: str, name: str) -> str:
    """As whoever has set it has written it: environment variables are in upper case."""
    return prefix + (name.upper() if prefix.isupper() else name)


def is_local(target: str) -> bool:
    """Whether what is sent there stays on this machine."""
    if target.startswith("unix:"):
        return True
    host = _SCHEME.sub("", target).rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
