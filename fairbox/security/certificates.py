"""Certificates and keys in PEM: whether a pair can be served, and until when. Pure.

`cryptography` is imported at the first use, because clients and servers without TLS don't need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairbox.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["MAX_PEM_BYTES", "Pair", "check_pair", "check_roots"]

MAX_PEM_BYTES = 1 << 20
"""Of one file: a bundle of all public authorities has a quarter of that."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, that fit each other."""

    chain: bytes
    key: bytes
    expires_at: float
    """Of the first certificate, the server's own: seconds since 1970."""


def check_pair(chain: bytes, key: bytes, cert_setting: str, key_setting: str) -> Pair:
    """ConfigError unless `chain` begins with the certificate of `key`, both PEM, the key without a password. The
    settings are what errors name."""
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
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigError(f"{setting}: must hold certificates in PEM") from None
