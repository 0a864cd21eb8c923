"""Certificates that OpenSSL or we can't use: at the start, and in the place of one that is served."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from fairbox.errors import ConfigError
from fairbox.security.tls import ServerTls
from fairbox.testing import ManualClock
from tests.security.authority import Authority, Files
from tests.security.services import Secrets
from tests.security.test_rotation import name

UNSUPPORTED = b"""-----BEGIN PRIVATE KEY-----
ME4CAQAwEAYHKoZIzj0CAQYFK4EEAAYENzA1AgEBBA4wn9Fw17RE4umue9pz2aEg
Ax4ABD8R4guuR+/kokIdHpCRDDUS38mw9WQCwXygHZo=
-----END PRIVATE KEY-----
"""
"""A key of the curve secp112r1, which `cryptography` does not know."""


def weak(authority: Authority) -> Files:
    """A certificate whose key is shorter than OpenSSL serves."""
    return authority.sign("weak", key=rsa.generate_private_key(65537, 1024))


def nameless(address: str, authority: Authority) -> bool:
    """Says whether a client that names no host can connect, like those that connect to an IP address."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = False
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as connection:
        return connection.version() is not None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tls(secrets: Secrets, clock: ManualClock) -> ServerTls:
    return ServerTls(str(secrets.server.cert), str(secrets.server.key), clock=clock)


async def test_https_keeps_its_certificate_when_the_new_one_is_too_weak(
    secrets: Secrets, clock: ManualClock, tls: ServerTls
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls.https())
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        weak(secrets.authority).copy_to(secrets.server)
        clock.advance(1.0)
        assert await name(address, secrets) == "server"
        assert "tls_cert is" in tls.problem
        assert "KEY_TOO_SMALL" in tls.problem
        secrets.authority.sign("second").copy_to(secrets.server)
        clock.advance(1.0)
        assert await name(address, secrets) == "second"
        assert await asyncio.to_thread(nameless, address, secrets.authority)
        assert tls.problem == ""


def test_https_does_not_begin_with_a_certificate_that_is_too_weak(secrets: Secrets) -> None:
    files = weak(secrets.authority)
    with pytest.raises(ConfigError, match=r"tls_cert is '.*weak.pem', which can't be served: .*KEY_TOO_SMALL"):
        ServerTls(str(files.cert), str(files.key)).https()


def test_a_key_of_an_unknown_kind_changes_nothing(
    secrets: Secrets, clock: ManualClock, tls: ServerTls, tmp_path: Path
) -> None:
    before = tls.expires_at
    secrets.server.key.write_bytes(UNSUPPORTED)
    for _ in range(2):
        clock.advance(1.0)
        assert tls.expires_at == before
        assert "tls_key is" in tls.problem
    with pytest.raises(ConfigError, match="must be a private key in PEM"):
        ServerTls(str(secrets.server.cert), str(secrets.server.key))
