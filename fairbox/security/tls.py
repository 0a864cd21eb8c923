"""TLS of a server, from files that may change while it serves.

Invariants: a new certificate is used for connections that are made after the change, and those that are open go on; a
file that can't be read, a half-written one, or a key that is another's leaves everything as it is, and is told in the
log and in `problem`. gRPC asks for the certificate in threads of its own, once for each connection; a port that speaks
HTTPS in the event loop, where looking costs a read of small files, at most once a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable

import grpc

from fairbox.clock import Clock
from fairbox.errors import ConfigError
from fairbox.security.certificates import MAX_PEM_BYTES, Pair, check_pair, check_roots
from fairbox.security.files import FileSet

__all__ = ["ServerTls"]

_LOG = logging.getLogger("fairbox.security")


class ServerTls:
    """`credentials()` for each port that speaks TLS. `client_ca` empty: clients need no certificate."""

    def __init__(self, cert: str, key: str, client_ca: str = "", *, clock: Clock | None = None) -> None:
        """ConfigError for files that can't be served."""
        named = [("tls_cert", cert), ("tls_key", key)] + ([("tls_client_ca", client_ca)] if client_ca else [])
        self._where = [f"{setting} is {path!r}" for setting, path in named]
        self._files = FileSet(named, max_bytes=MAX_PEM_BYTES, clock=clock)
        self._lock = threading.Lock()
        self._pair: Pair
        self._roots: bytes | None = None
        self._https: ssl.SSLContext | None = None
        """With the certificate in use, once a port speaks HTTPS."""
        self._version = 0
        self.mutual = bool(client_ca)
        """Whether clients must show a certificate."""
        self.problem = ""
        """Why the files of this moment are not in use; empty: they are."""
        self._load()
        if self._pair.expires_at <= time.time():
            _LOG.error("the certificate in %s has expired: clients will refuse it", cert)

    @property
    def expires_at(self) -> float:
        """End of the certificate in use, seconds since 1970. Looks at the files."""
        self._renew()
        return self._pair.expires_at

    def credentials(self) -> grpc.ServerCredentials:
        """For one port."""
        given = [self._version]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """None: that which the port has already."""
            self._renew()
            with self._lock:
                if given[0] == self._version:
                    return None
                given[0] = self._version
                return self._configuration()

        make: Callable[..., grpc.ServerCredentials] = grpc.dynamic_ssl_server_credentials
        return make(self._configuration(), fetch, require_client_authentication=self.mutual)

    def https(self) -> ssl.SSLContext:
        """For ports that speak HTTPS. Clients are asked for no certificate, whatever `client_ca` says. ConfigError for
        a certificate that OpenSSL does not serve."""
        self._renew()
        with self._lock:
            self._https = self._context(self._pair)
            door = self._context(self._pair)

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
            """Once for each connection, with the first thing that it says."""
            self._renew()
            with self._lock:
                assert self._https is not None
                connection.context = self._https

        door.sni_callback = choose
        return door

    def _context(self, pair: Pair) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # What was checked, and not what the files hold by now; the key is in no other file for that.
        with contextlib.ExitStack() as stack:
            held = os.memfd_create("certificate")
            stack.callback(os.close, held)
            os.write(held, pair.chain + b"\n" + pair.key)
            try:
                context.load_cert_chain(f"/proc/self/fd/{held}")
            except ssl.SSLError as error:
                raise ConfigError(f"{self._where[0]}, which can't be served: {error.reason or error}") from None
        return context

    def _renew(self) -> None:
        with self._lock:
            try:
                if self._load():
                    _LOG.info("the certificate was read again")
            except ConfigError as error:
                if self.problem != str(error):
                    _LOG.error("the certificate stays as it was: %s", error)
                self.problem = str(error)

    def _load(self) -> bool:
        """Whether there was anything new."""
        contents = self._files.look()
        if contents is None:
            return False
        chain, key, *roots = contents
        pair = check_pair(chain, key, self._where[0], self._where[1])
        trusted = check_roots(roots[0], self._where[2]) if roots else None
        if self._https is not None:  # OpenSSL refuses some that gRPC would serve; all ports have the same one
            self._https = self._context(pair)
        self._pair, self._roots = pair, trusted
        self._version += 1
        self.problem = ""
        return True

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self._pair.key, self._pair.chain)], self._roots)
