"""TLS of a server, from files that may change while it serves.

Invariants: a new certificate is used for connections that are made after the change, and those that are open go on; a
file that can't be read, a half-written one, or a key that is another's leaves everything as it is, and is told in the
log and in `problem`. gRPC asks for the certificate in threads of its own, once for each connection; a port that speaks
HTTPS in the event loop, where looking costs a read of small files, at most once a second.

`cryptography` comes with the extra `tls` and is imported at the first use: without TLS nobody needs it.

`FileSet`: a mounted Secret is swapped by a symbolic link, which watches of files miss and times of files hide: contents
are compared. It has no thread and no task; a look reads the files at most once in `every` seconds, and only when
somebody asks; a file is never read beyond its bound. Reading blocks: the files are small and local.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import ConfigError
from fairbox.extras import require

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_EVERY_S = 1.0
"""Soon enough for whoever rotates a secret, and next to nothing for the disk."""


class FileSet:
    """Files that are used together. `files` are (setting, path)."""

    def __init__(
        self, files: Sequence[tuple[str, str]], *, max_bytes: int, clock: Clock | None = None, every: float = _EVERY_S
    ) -> None:
        self._files = tuple(files)
        self._max_bytes = max_bytes
        self._clock = clock or MonotonicClock()
        self._every = every
        self._seen: bytes | None = None
        self._looked = float("-inf")

    def look(self) -> tuple[bytes, ...] | None:
        """The contents, where they differ from those of the last look; None: they don't, or it is too early to know.
        ConfigError, naming the setting, for a file that can't be read."""
        now = self._clock.now()
        if now - self._looked < self._every:
            return None
        seen, self._looked, self._seen = self._seen, now, None  # what can't be read is news when it can be read again
        contents = tuple(self._read(setting, path) for setting, path in self._files)
        self._seen = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).digest()
        return None if self._seen == seen else contents

    def _read(self, setting: str, path: str) -> bytes:
        try:
            with Path(path).open("rb") as file:
                content = file.read(self._max_bytes + 1)
        except OSError as error:
            raise ConfigError(f"{setting} is {path!r}, which can't be read: {error.strerror or error}") from None
        if len(content) > self._max_bytes:
            raise ConfigError(f"{setting} is {path!r}, which has more than {self._max_bytes} bytes")
        return content


MAX_PEM_BYTES = 1 << 20
"""Most bytes of one file: a bundle of all public authorities has a quarter of that."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, that fit each other."""

    chain: bytes
    key: bytes
    expires_at: float
    """Expiry of the first certificate, the server's own: seconds since 1970."""


def check_pair(chain: bytes, key: bytes, cert_setting: str, key_setting: str) -> Pair:
    """ConfigError unless `chain` begins with the certificate of `key`, both PEM, the key without a password. The
    settings are what errors name."""
    require(cert_setting, "tls", "cryptography")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    own = _certificates(chain, cert_setting)[0]
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        private = load_pem_private_key(key, None).public_key().public_bytes(*form)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        raise ConfigError(f"{key_setting}: must be a private key in PEM without a password, of a usual kind") from None
    try:
        public = own.public_key().public_bytes(*form)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{cert_setting}: must have a public key of a usual kind") from None
    if private != public:
        raise ConfigError(f"{key_setting}: is not the key of the certificate in {cert_setting}")
    return Pair(chain, key, own.not_valid_after_utc.timestamp())


def check_roots(roots: bytes, setting: str) -> bytes:
    """ConfigError unless `roots` holds certificates in PEM."""
    _certificates(roots, setting)
    return roots


def _certificates(pem: bytes, setting: str) -> list[Certificate]:
    require(setting, "tls", "cryptography")
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{setting}: must hold certificates in PEM") from None


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
        """True if clients must show a certificate."""
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
        """Loads the files, and says whether anything was new."""
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
