"""Lets a client prove who it is, and know whom it talks to.

Invariants: without `tls_ca` nothing is encrypted, and then a token goes to loopback alone unless `plaintext_token` says
otherwise; nothing here holds what is in the files.

`SecuredChannel`: every call has the token of that moment; after a change of certificate or authorities new calls get a
new channel, and those in flight end on the old one; a file that turns bad leaves everything as it is, and the log says
so. It is made inside the loop that uses it. Tokens are added here and not by an interceptor, which would wrap
every call in a task of its own.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from fairbox.clock import Clock
from fairbox.errors import ConfigError
from fairbox.security.tls import MAX_PEM_BYTES, FileSet, check_pair, check_roots
from fairbox.security.tokens import MAX_FILE_BYTES, first_token
from fairbox.settings import setting

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
        """True if there is neither TLS nor a token."""
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


CLIENT_VARIABLES = (
    *("FAIRBOX_TLS_CA", "FAIRBOX_TLS_CERT", "FAIRBOX_TLS_KEY", "FAIRBOX_TLS_SERVER_NAME"),
    *("FAIRBOX_TOKEN_FILE", "FAIRBOX_ADMIN_TOKEN_FILE", "FAIRBOX_PLAINTEXT_TOKEN"),
)
"""Variables that say how a process reaches services."""


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
    """Says whether data sent there stays on this machine."""
    if target.startswith("unix:"):
        return True
    return is_loopback(_SCHEME.sub("", target).rpartition(":")[0].strip("[]"))


def is_loopback(host: str) -> bool:
    """Says whether only this machine reaches what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_LOG = logging.getLogger("fairbox.security")


class SecuredChannel(grpc.aio.Channel):
    """As `grpc.aio.secure_channel(target, ...)`. ConfigError for files that can't be used, and for a token that would
    cross a network in the clear."""

    def __init__(
        self, target: str, security: ClientSecurity, options: Sequence[tuple[str, Any]], *, clock: Clock | None = None
    ) -> None:
        security.check_target(target)
        self._target = target
        self._security = security
        self._options = list(options)
        if security.tls_server_name:
            self._options.append(("grpc.ssl_target_name_override", security.tls_server_name))
        self._tls = FileSet(_tls_files(security), max_bytes=MAX_PEM_BYTES, clock=clock)
        self._token = FileSet(_token_files(security), max_bytes=MAX_FILE_BYTES, clock=clock)
        self._authorization: tuple[tuple[str, str], ...] = ()
        self._problem = ""
        self._closed = False
        self._calls: weakref.WeakSet[Any] = weakref.WeakSet()
        """Calls that somebody holds, on whichever channel they are."""
        self._take_token(self._token.look() or ())
        self._channel = self._connected(self._tls.look() or ())

    def current(self) -> tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]:
        """The channel for the next call, and the metadata that it needs. Looks at the files."""
        try:
            self._take_token(self._token.look() or ())
            if not self._closed and (contents := self._tls.look()):
                self._channel = self._connected(contents)  # calls in flight keep what they need of the old one
                _LOG.info("certificates were read again for calls to %s", self._target)
        except ConfigError as error:
            if self._problem != str(error):
                _LOG.error("calls to %s go on with what was read before: %s", self._target, error)
            self._problem = str(error)
        return self._channel, self._authorization

    def note(self, call: Any) -> None:
        """A call that ends with this channel."""
        self._calls.add(call)

    def _take_token(self, contents: Sequence[bytes]) -> None:
        for content in contents:
            token = first_token(content, f"token_file is {self._security.token_file!r}")
            self._authorization, self._problem = (("authorization", f"Bearer {token}"),), ""

    def _connected(self, contents: Sequence[bytes]) -> grpc.aio.Channel:
        security = self._security
        if not security.tls_ca:
            return grpc.aio.insecure_channel(self._target, options=self._options)
        found = dict(zip((name for name, _ in _tls_files(security)), contents, strict=True))
        roots, chain, key = (found.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))
        if roots is not None:
            check_roots(roots, f"tls_ca is {security.tls_ca!r}")
        if chain is not None and key is not None:
            check_pair(chain, key, f"tls_cert is {security.tls_cert!r}", f"tls_key is {security.tls_key!r}")
        credentials = grpc.ssl_channel_credentials(roots, key, chain)
        self._problem = ""
        return grpc.aio.secure_channel(self._target, credentials, options=self._options)

    # As a channel

    async def __aenter__(self) -> SecuredChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Ends calls after `grace` seconds. Idempotent."""
        self._closed = True
        await self._channel.close(grace)
        for call in list(self._calls):
            call.cancel()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """State of the channel that new calls use."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits for a change in the state of the channel that new calls use."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the channel that new calls use is ready."""
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", args, options)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", args, options)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", args, options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", args, options)


class _Method:
    """One method of a stub, on whichever channel is the current one."""

    def __init__(self, channel: SecuredChannel, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._channel = channel
        self._kind = kind
        self._args = args
        self._options = options
        self._made_for: grpc.aio.Channel | None = None
        self._callable: Any = None

    def __call__(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        channel, authorization = self._channel.current()
        if channel is not self._made_for:
            self._made_for = channel
            self._callable = getattr(channel, self._kind)(*self._args, **self._options)
        metadata = (*(metadata or ()), *authorization)
        call = self._callable(*args, metadata=metadata or None, **options)
        self._channel.note(call)
        return call


def _tls_files(security: ClientSecurity) -> list[tuple[str, str]]:
    named = [("tls_ca", "" if security.tls_ca == SYSTEM else security.tls_ca)]
    named += [("tls_cert", security.tls_cert), ("tls_key", security.tls_key)]
    return [(name, path) for name, path in named if path]


def _token_files(security: ClientSecurity) -> list[tuple[str, str]]:
    return [("token_file", security.token_file)] if security.token_file else []
