"""SandboxFusion's gateway with a certificate: clients that know nothing of us, rotation, handshakes that never end."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests

from fairbox.net.ports import free_port
from tests.executor.servers import running
from tests.security.services import Secrets
from tests.security.test_rotation import shown_to_strangers

_LOOK_S = 1.1
"""After so long files are looked at again."""
TOKEN = "gateway-token-0123456789"


@dataclass(frozen=True)
class Gateway:
    """One of an executor that runs."""

    address: str
    secrets: Secrets

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    def run(self, session: requests.Session, code: str) -> str:
        body = {"code": code, "language": "python"}
        answer = session.post(f"{self.url}/k/{TOKEN}/run_code", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_result"]["stdout"])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("https")
    secrets = Secrets.make(folder)
    (folder / "gateway.token").write_text(TOKEN)
    address = f"127.0.0.1:{free_port()}"
    words = [*secrets.server.settings(), f"gateway_listen={address}", "languages=python"]
    with running(*words, f"gateway_token_file={folder / 'gateway.token'}"):
        yield Gateway(address, secrets)


@pytest.fixture
def session(gateway: Gateway) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False  # else authorities of the environment are taken in place of these
        session.verify = str(gateway.secrets.authority.ca)
        yield session


def test_plain_clients_of_the_gateway_use_its_certificate(gateway: Gateway, session: requests.Session) -> None:
    assert gateway.run(session, "print(6 * 7)") == "42\n"
    assert session.get(f"{gateway.url}/v1/ping", timeout=60).status_code == 200
    with pytest.raises(requests.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        requests.get(f"{gateway.url}/v1/ping", timeout=60)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"http://{gateway.address}/v1/ping", timeout=60)
    assert gateway.run(session, "print(1)") == "1\n"


def test_the_gateway_follows_its_certificate(gateway: Gateway, session: requests.Session) -> None:
    secrets, kept = (
        gateway.secrets,
        [path.read_bytes() for path in (gateway.secrets.server.cert, gateway.secrets.server.key)],
    )
    assert gateway.run(session, "print(1)") == "1\n"
    assert shown_to_strangers(gateway.address, secrets) == "server"
    secrets.authority.sign("second").copy_to(secrets.server)
    time.sleep(_LOOK_S)
    assert shown_to_strangers(gateway.address, secrets) == "second"
    secrets.server.cert.write_text("-----BEGIN")
    time.sleep(_LOOK_S)
    assert shown_to_strangers(gateway.address, secrets) == "second"
    for path, content in zip((secrets.server.cert, secrets.server.key), kept, strict=True):
        path.write_bytes(content)
    time.sleep(_LOOK_S)
    assert shown_to_strangers(gateway.address, secrets) == "server"
    assert gateway.run(session, "print(2)") == "2\n"  # over the connection of before


def test_handshakes_that_never_end_leave_the_gateway_to_others(gateway: Gateway, session: requests.Session) -> None:
    host, _, port = gateway.address.rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(200)]
    try:
        for connection in idle[:100]:
            connection.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        assert gateway.run(session, "print(3)") == "3\n"
    finally:
        for connection in idle:
            connection.close()


def test_old_versions_of_tls_are_refused(gateway: Gateway) -> None:
    context = ssl.create_default_context(cafile=str(gateway.secrets.authority.ca))
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    host, _, port = gateway.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        pytest.raises(OSError, match=r"ssl|SSL|reset"),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
