"""Settings of the capture gateway, each with its default and its meaning in one place."""

from __future__ import annotations

from dataclasses import dataclass

from fairbox.config import check, setting
from fairbox.errors import ConfigError
from fairbox.security import Role
from fairbox.security.tokens import Keyring
from rollout.tools import FORMATS
from rollout.tools.formats.choice import AUTO


@dataclass(frozen=True)
class CaptureSettings:
    """The gateway's address, and bounds on what it holds and runs."""

    listen: str = setting("127.0.0.1:8081", help="Address of the OpenAI-compatible endpoint; port 0 takes a free one.")
    token_file: str = setting("", help="File with tokens, one a line; clients send one as their api_key; empty: none.")
    tls_cert: str = setting("", help="File with the certificate and its chain (PEM): the endpoint speaks HTTPS.")
    tls_key: str = setting("", help="File with its key (PEM).")
    insecure: bool = setting(False, help="Listen on other addresses than loopback without a token.")
    models: str = setting(
        "", help="Further names of the model that requests may use, with commas between them; *: any."
    )
    ignore_parameters: str = setting("", help="Parameters of requests that have no effect, with commas between them.")
    tool_format: str = setting(
        AUTO, choices=(AUTO, *FORMATS), help="How the model writes tool calls; auto: as its chat template does."
    )
    max_turn_tokens: int = setting(4096, least=1, help="Most tokens of a turn; requests may ask for less.")
    max_trajectories: int = setting(4096, least=1, help="Most trajectories that are held; then 429.")
    max_concurrent: int = setting(512, least=1, help="Most requests in flight; then 429.")
    idle_ttl_s: float = setting(3600.0, above=0, help="A trajectory that nobody used for so long is given up, seconds.")
    request_timeout_s: float = setting(
        1800.0, above=0, help="Longest time of a request, its wait for the engine included; 504."
    )

    def keyring(self) -> Keyring | None:
        """The tokens of clients; None: they send none. ConfigError for a file that can't be used."""
        return Keyring({Role.CLIENT: self.token_file}, setting="token_file") if self.token_file else None

    def validate(self) -> None:
        """ConfigError for what types can't say."""
        check(self)
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key go together: set both, or none")
