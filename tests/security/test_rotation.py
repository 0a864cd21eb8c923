"""Certificates that change while servers and clients run."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairbox.security import ClientSecurity
from fairbox.v1 import common_pb2
from limiter import LimiterClient
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import admin_stub, raw_hello, unary_stub
from tests.security.authority import Authority, Files
from tests.security.services import Secrets, guarded_limiter

_LOOK_S = 1.1
"""After so long files are looked at again."""


def shown_to_strangers(address: str, secrets: Secrets) -> str:
    """The name in the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(secrets.authority.ca))
    context.load_cert_chain(secrets.client.cert, secrets.client.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate is not None
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate["subject"])
    return dict(pair for part in subject for pair in part)["commonName"]


async def name(address: str, secrets: Secrets) -> str:
    return await asyncio.to_thread(shown_to_strangers, address, secrets)


async def told(server: LimiterServer, security: ClientSecurity) -> common_pb2.SecurityStatus:
    async with admin_stub(server, security) as stub:
        return (await stub.GetStatus(pb.GetStatusRequest(), timeout=10)).security


async def test_new_connections_see_the_new_certificate_and_old_ones_go_on(secrets: Secrets) -> None:
    admin = secrets.security("admin")
    async with (
        guarded_limiter(secrets) as server,
        LimiterClient(server.address, security=secrets.security()) as old,
        admin_stub(server, admin) as stub,
    ):
        await stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        async with old.lease():
            assert await name(server.address, secrets) == "server"
            second = secrets.authority.sign("second")
            second.copy_to(secrets.server)
            await asyncio.sleep(_LOOK_S)
            assert await name(server.address, secrets) == "second"
            assert await name(server.admin_address, secrets) == "second"  # each port follows by itself
            assert server.statistics().held == 1
        async with old.lease():  # over the stream of before
            assert old.connected
        await stub.GetStatus(pb.GetStatusRequest(), timeout=10)  # over the connection of before


@pytest.mark.parametrize("spoiled", ["half a certificate", "the key of another", "nothing", "no authority"])
async def test_a_bad_file_keeps_the_old_certificate_and_is_told(
    secrets: Secrets, spoiled: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin = secrets.security("admin")
    kept = {path: path.read_bytes() for path in (secrets.server.cert, secrets.server.key)}
    kept_ca, server_ca = secrets.authority.ca.read_bytes(), secrets.folder / "clients.pem"
    server_ca.write_bytes(kept_ca)
    async with guarded_limiter(secrets, tls_client_ca=str(server_ca)) as server:
        second = secrets.authority.sign("second")
        if spoiled == "half a certificate":
            secrets.server.cert.write_bytes(second.cert.read_bytes()[:200])
        elif spoiled == "the key of another":
            secrets.server.cert.write_bytes(second.cert.read_bytes())
        elif spoiled == "no authority":
            server_ca.write_text("-----BEGIN")
        else:
            secrets.server.key.unlink()
        await asyncio.sleep(_LOOK_S)
        assert await name(server.address, secrets) == "server"
        found = (await told(server, admin)).problems
        assert len(found) == 1
        assert found[0].startswith("tls_")
        assert caplog.text.count("the certificate stays as it was") == 1
        for path, content in kept.items():  # the other half arrives
            path.write_bytes(content if spoiled != "half a certificate" else _of(second, path, secrets).read_bytes())
        server_ca.write_bytes(kept_ca)
        await asyncio.sleep(_LOOK_S)
        assert await name(server.address, secrets) == ("second" if spoiled == "half a certificate" else "server")
        assert not (await told(server, admin)).problems


async def test_prometheus_sees_the_end_of_the_certificate_denied_calls_and_bad_files(secrets: Secrets) -> None:
    admin = secrets.security("admin")
    async with guarded_limiter(secrets, metrics_listen="127.0.0.1:0") as server:

        def scraped() -> dict[str, float]:
            with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=20) as answer:
                text = str(answer.read(), "utf-8")
            samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            return {"".join([one.name, *one.labels.values()]): one.value for one in samples}

        expires = (await told(server, admin)).certificate_expires_at_s
        with pytest.raises(grpc.aio.AioRpcError, match="PERMISSION_DENIED"):
            await told(server, secrets.security("client"))
        before = await asyncio.to_thread(scraped)
        secrets.server.key.unlink()
        await asyncio.sleep(_LOOK_S)
        after = await asyncio.to_thread(scraped)
    assert before["fairbox_limiter_certificate_expires_timestamp_seconds"] == expires > time.time()
    assert before["fairbox_limiter_calls_denied_totalpermission_denied"] == 1
    assert before["fairbox_limiter_calls_denied_totalunauthenticated"] == 0
    assert (before["fairbox_limiter_security_problems"], after["fairbox_limiter_security_problems"]) == (0, 1)


def _of(files: Files, path: Path, secrets: Secrets) -> Path:
    return files.cert if path == secrets.server.cert else files.key


async def test_a_clients_certificate_and_authorities_are_rotated_too(secrets: Secrets, tmp_path: Path) -> None:
    """The authority itself changes: for a time both sides trust both."""
    server_trusts, client_trusts = tmp_path / "server-trusts.pem", tmp_path / "client-trusts.pem"
    old_ca = secrets.authority.ca.read_bytes()
    for path in (server_trusts, client_trusts):
        path.write_bytes(old_ca)
    security = replace(secrets.security("admin"), tls_ca=str(client_trusts))
    async with (
        guarded_limiter(secrets, tls_client_ca=str(server_trusts)) as server,
        admin_stub(server, security) as stub,
        unary_stub(server, replace(secrets.security(), tls_ca=str(client_trusts))) as clients,
    ):
        in_flight = clients.Session()
        await in_flight.write(pb.SessionRequest(hello=raw_hello()))
        assert isinstance(await in_flight.read(), pb.SessionResponse)
        new = Authority(tmp_path, "new")
        for path in (server_trusts, client_trusts):
            path.write_bytes(old_ca + new.ca.read_bytes())
        await asyncio.sleep(_LOOK_S)
        await stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        new.sign("client-of-new").copy_to(secrets.client)
        new.sign("server-of-new").copy_to(secrets.server)
        await asyncio.sleep(_LOOK_S)
        await stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        for path in (server_trusts, client_trusts):
            path.write_bytes(new.ca.read_bytes())
        await asyncio.sleep(_LOOK_S)
        await stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        for number in (1, 2, 3):  # a call of before goes on, on the connection that it has
            await in_flight.write(pb.SessionRequest(heartbeat=number))
            answer = await in_flight.read()
            assert isinstance(answer, pb.SessionResponse)
            assert answer.heartbeat_ack == number
    assert in_flight.done()  # with its channel


async def test_a_client_goes_on_with_what_it_has_when_a_file_turns_bad(
    secrets: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        guarded_limiter(secrets) as server,
        admin_stub(server, secrets.security("admin")) as stub,
    ):
        await stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        secrets.client.cert.write_text("half")
        (secrets.folder / "admin.token").unlink()
        for _ in range(2):
            await asyncio.sleep(_LOOK_S)
            await stub.GetStatus(pb.GetStatusRequest(), timeout=10)
        assert "go on with what was read before: token_file is" in caplog.text
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.RevokeLease(pb.RevokeLeaseRequest(), timeout=10)
