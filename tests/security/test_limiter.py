"""The limiter with TLS and tokens, over real connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairbox.errors import ConfigError
from fairbox.net.channels import open_channel
from fairbox.security import PLAINTEXT, ClientSecurity, Role
from limiter import ExecutorSession, LeaseRefused, LimiterClient, LimiterUnavailable
from limiter.config import LimiterConfig
from limiter.server import LimiterServer
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.servers import admin_stub, lease_message, raw_hello, unary_lease, unary_stub
from tests.security.authority import Authority
from tests.security.services import TOKENS, Secrets, guarded_limiter


async def status(server: LimiterServer, security: ClientSecurity) -> pb.GetStatusResponse:
    async with admin_stub(server, security) as stub:
        return await stub.GetStatus(pb.GetStatusRequest(), timeout=10)


async def ended(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """Status and text with which a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


async def test_everything_works_with_certificates_and_tokens(secrets: Secrets) -> None:
    async with (
        guarded_limiter(secrets) as server,
        LimiterClient(server.address, security=secrets.security()) as client,
        ExecutorSession(server.address, executor_id="e", security=secrets.security("executor")) as executor,
    ):
        async with client.lease() as lease:
            outcome = await executor.bind(lease, run_id="r")
            assert outcome.bound
            executor.release(lease)
        while server.statistics().held:  # it is given back a moment later
            await asyncio.sleep(0.01)
        async with unary_stub(server, secrets.security()) as stub, unary_lease(stub, pb.AcquireTokenRequest()):
            shown = await status(server, secrets.security("admin"))
        assert shown.buckets[0].held == 1
        security = shown.security
        assert (security.tls, security.mutual_tls, list(security.problems)) == (True, True, [])
        assert {each.role: each.count for each in security.tokens} == {"client": 2, "executor": 1, "admin": 1}
        assert 0 < security.certificate_expires_at_s - time.time() < 2 * 86_400
        assert not shown.insecure


async def test_health_is_plain_and_asks_for_nothing(secrets: Secrets) -> None:
    async with guarded_limiter(secrets) as server, open_channel(server.health_address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("who", "code", "text"),
    [
        (
            "",
            grpc.StatusCode.UNAUTHENTICATED,
            "needs a token of the role client, in the metadata `authorization: Bearer",
        ),
        ("executor", grpc.StatusCode.PERMISSION_DENIED, "needs a token of the role client; the one that was given has"),
        ("admin", grpc.StatusCode.PERMISSION_DENIED, "the one that was given has the role admin"),
    ],
)
async def test_only_clients_acquire(secrets: Secrets, who: str, code: grpc.StatusCode, text: str) -> None:
    async with guarded_limiter(secrets) as server, unary_stub(server, secrets.security(who)) as stub:
        found = await ended(stub.AcquireToken(pb.AcquireTokenRequest(), timeout=10))
        assert found[0] is code
        assert text in found[1]
        assert not any(token in found[1] for token in TOKENS.values())
        assert server.statistics().queued == 0
        assert server.statistics().held == 0


async def test_only_operators_see_and_change_buckets(secrets: Secrets) -> None:
    async with guarded_limiter(secrets) as server:
        for who, code in (
            ("", grpc.StatusCode.UNAUTHENTICATED),
            ("client", grpc.StatusCode.PERMISSION_DENIED),
            ("executor", grpc.StatusCode.PERMISSION_DENIED),
        ):
            async with admin_stub(server, secrets.security(who)) as stub:
                change = pb.ConfigureBucketRequest(config=pb.BucketConfig(name="code", max_in_flight=99))
                assert (await ended(stub.ConfigureBucket(change, timeout=10)))[0] is code
                assert (await ended(stub.RevokeLease(pb.RevokeLeaseRequest(), timeout=10)))[0] is code
                assert (await ended(stub.ListLeases(pb.ListLeasesRequest(), timeout=10)))[0] is code
        shown = await status(server, secrets.security("admin"))
        assert shown.buckets[0].config.max_in_flight == 10
        assert (shown.security.unauthenticated_total, shown.security.denied_total) == (3, 6)


async def test_a_client_can_not_pass_for_an_executor(secrets: Secrets) -> None:
    async with guarded_limiter(secrets) as server:
        for who, kind, problem in (
            ("client", pb.SESSION_KIND_EXECUTOR, "hello.kind is executor, which needs a token of the role executor"),
            ("team", pb.SESSION_KIND_EXECUTOR, "hello.kind is executor, which needs a token of the role executor"),
            ("executor", pb.SESSION_KIND_CLIENT, "hello.kind is client, which needs a token of the role client"),
        ):
            async with unary_stub(server, secrets.security(who)) as stub:
                stream = stub.Session(timeout=10)
                await stream.write(pb.SessionRequest(hello=raw_hello("s", kind)))
                assert await ended(stream.read()) == (grpc.StatusCode.PERMISSION_DENIED, problem)
        # A session that is a client's binds nothing.
        async with (
            LimiterClient(server.address, security=secrets.security()) as client,
            client.lease() as lease,
            unary_stub(server, secrets.security()) as stub,
        ):
            stream = stub.Session(timeout=10)
            await stream.write(pb.SessionRequest(hello=raw_hello()))
            await stream.write(pb.SessionRequest(binds=[pb.Bind(lease=lease_message(lease))]))
            await stream.read()  # the welcome
            code, text = await ended(stream.read())
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "only an executor's session may send" in text
        assert [each for each in server.runner.core.sessions(10) if each.kind == "executor"] == []


async def test_a_tenants_token_is_for_that_tenant(secrets: Secrets) -> None:
    async with (
        guarded_limiter(secrets) as server,
        unary_stub(server, secrets.security("team")) as stub,
        LimiterClient(server.address, security=secrets.security("team")) as client,
        admin_stub(server, secrets.security("admin")) as admin,
    ):
        wrong = "tenant is 'other', must be empty or 'team', which the token is for"
        call = stub.AcquireToken(pb.AcquireTokenRequest(tenant="other"), timeout=10)
        assert await ended(call) == (grpc.StatusCode.PERMISSION_DENIED, wrong)
        with pytest.raises(LeaseRefused, match=wrong):
            async with client.lease(tenant="other"):
                pass
        await stub.AcquireToken(pb.AcquireTokenRequest(), timeout=10)
        async with client.lease(), client.lease(tenant="team"):
            leases = (await admin.ListLeases(pb.ListLeasesRequest(), timeout=10)).leases
            assert [lease.tenant for lease in leases] == ["team"] * 3


async def test_tokens_are_rotated_without_a_restart(secrets: Secrets) -> None:
    """Old and new together first, then the new alone: no call fails that has the right one."""
    new, mine = "n" * 24, secrets.folder / "client.token"
    async with guarded_limiter(secrets, **_quick()) as server:
        async with LimiterClient(server.address, security=secrets.security()) as stream:
            async with unary_stub(server, secrets.security()) as stub:
                async with unary_lease(stub, pb.AcquireTokenRequest()), stream.lease():
                    pass
                secrets.tokens(Role.CLIENT).write_text(f"{TOKENS[Role.CLIENT]}\n{new}\n")
                await asyncio.sleep(1.1)
                mine.write_text(new)
                await asyncio.sleep(1.1)
                async with unary_lease(stub, pb.AcquireTokenRequest()):
                    pass
                secrets.tokens(Role.CLIENT).write_text(new)
                await asyncio.sleep(1.1)
                async with unary_lease(stub, pb.AcquireTokenRequest()):
                    pass
            async with stream.lease():  # its stream was ended, and opened again with the new token
                pass
        mine.write_text(TOKENS[Role.CLIENT])
        async with LimiterClient(server.address, unavailable_after=0.5, security=secrets.security()) as late:
            with pytest.raises(LimiterUnavailable, match="UNAUTHENTICATED: authorization is not `Bearer` and a token"):
                async with late.lease():
                    pass


def _quick() -> dict[str, float]:
    return {"grace_s": 0.5}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda secrets: replace(secrets.security(), tls_cert="", tls_key=""), "UNAVAILABLE"),
        (lambda secrets: PLAINTEXT, "UNAVAILABLE"),
        (
            lambda secrets: replace(secrets.security(), tls_ca=str(Authority(secrets.folder, "another").ca)),
            "UNAVAILABLE",
        ),
        (lambda secrets: replace(secrets.security(), tls_server_name="elsewhere.example"), "UNAVAILABLE"),
    ],
    ids=["no certificate", "plain text", "another authority", "another name"],
)
async def test_what_tls_keeps_out(secrets: Secrets, change: Callable[[Secrets], ClientSecurity], text: str) -> None:
    async with guarded_limiter(secrets) as server:
        async with unary_stub(server, change(secrets)) as stub:
            assert (await ended(stub.AcquireToken(pb.AcquireTokenRequest(), timeout=5)))[0].name == text
        async with unary_stub(server, secrets.security()) as stub, unary_lease(stub, pb.AcquireTokenRequest()):
            pass  # others are served


async def test_an_expired_certificate_is_refused_on_either_side(secrets: Secrets) -> None:
    past = timedelta(hours=-1)
    secrets.authority.sign("client", good_for=past)
    async with guarded_limiter(secrets) as server:
        async with unary_stub(server, secrets.security()) as stub:
            code, _ = await ended(stub.AcquireToken(pb.AcquireTokenRequest(), timeout=5))
            assert code is grpc.StatusCode.UNAVAILABLE
        secrets.authority.sign("client")
        async with unary_stub(server, secrets.security()) as stub, unary_lease(stub, pb.AcquireTokenRequest()):
            pass
    secrets.authority.sign("server", good_for=past)
    async with guarded_limiter(secrets) as server, unary_stub(server, secrets.security()) as stub:
        code, _ = await ended(stub.AcquireToken(pb.AcquireTokenRequest(), timeout=5))
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_name_in_the_certificate_can_be_told(secrets: Secrets) -> None:
    secrets.authority.sign("server", hosts=("limiter.fairbox.svc",))
    named = replace(secrets.security(), tls_server_name="limiter.fairbox.svc")
    async with (
        guarded_limiter(secrets) as server,
        unary_stub(server, named) as stub,
        unary_lease(stub, pb.AcquireTokenRequest()),
    ):
        assert server.statistics().held == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tls_key": ""}, "tls_cert and tls_key go together"),
        ({"tls_cert": "", "tls_key": ""}, "tls_client_ca is .* which needs tls_cert"),
        ({"executor_token_file": ""}, "client_token_file and executor_token_file go together"),
        ({"tls_cert": "/nowhere"}, "tls_cert is '/nowhere', which can't be read: No such file"),
        ({"admin_token_file": "/nowhere"}, "admin_token_file is '/nowhere', which can't be read"),
        ({"max_connections": 1}, "max_connections is 1, must be from 16"),
    ],
)
def test_settings_that_guard_nothing_are_refused(secrets: Secrets, settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        LimiterServer(LimiterConfig(**(secrets.server_settings() | settings)))


def test_a_key_of_another_certificate_is_refused(secrets: Secrets) -> None:
    settings = secrets.server_settings() | {"tls_key": str(secrets.client.key)}
    with pytest.raises(ConfigError, match=r"tls_key is .* is not the key of the certificate in tls_cert"):
        LimiterServer(LimiterConfig(**settings))


async def test_beyond_loopback_a_port_needs_a_guard(secrets: Secrets) -> None:
    open_ports = {"listen": "0.0.0.0:0", "admin_listen": "0.0.0.0:0", "health_listen": "0.0.0.0:0"}
    both = {"tls_cert": str(secrets.server.cert), "tls_key": str(secrets.server.key)}
    tokens = secrets.server_settings(tls=False)
    for settings in ({}, both, tokens | {"admin_token_file": ""}):  # TLS alone lets everybody in
        with pytest.raises(ConfigError, match="is not loopback, and nothing would protect it"):
            async with LimiterServer(LimiterConfig(metrics_listen="", **open_ports, **settings)):  # type: ignore[arg-type]
                pass
    for settings in (tokens, both | {"tls_client_ca": str(secrets.authority.ca)}, {"insecure": True}):
        listening = {"metrics_listen": "0.0.0.0:0", "fresh": True, **open_ports, **settings}
        async with LimiterServer(LimiterConfig(**listening)):
            pass


async def test_a_stream_ends_with_its_token(secrets: Secrets) -> None:
    async with (
        guarded_limiter(secrets) as server,
        LimiterClient(server.address, unavailable_after=0.5, security=secrets.security()) as client,
    ):
        async with client.lease():
            pass
        secrets.tokens(Role.CLIENT).write_text("n" * 24)
        await asyncio.sleep(2)
        with pytest.raises(LimiterUnavailable, match="UNAUTHENTICATED"):
            async with client.lease():
                pass
        assert server.statistics().held == 0


async def test_leases_outlive_the_rotation_of_an_executors_token(secrets: Secrets) -> None:
    """It reads its new token from its file, opens its stream again, and still has what it had bound."""
    new, mine = "n" * 24, secrets.folder / "executor.token"
    lost: list[str] = []
    async with (
        guarded_limiter(secrets) as server,
        LimiterClient(server.address, security=secrets.security()) as client,
        ExecutorSession(server.address, executor_id="e", security=secrets.security("executor")) as executor,
        client.lease() as lease,
    ):
        assert (await executor.bind(lease, run_id="r")).bound
        executor.when_lost(lease, lambda: lost.append("it"))
        secrets.tokens(Role.EXECUTOR).write_text(f"{TOKENS[Role.EXECUTOR]}\n{new}\n")
        mine.write_text(new)
        await asyncio.sleep(1.1)
        secrets.tokens(Role.EXECUTOR).write_text(new)
        interrupted = False
        for _ in range(400):
            await asyncio.sleep(0.01)
            assert executor.valid
            interrupted = interrupted or not executor.connected
        assert interrupted
        assert executor.connected
        assert executor.vouches(lease)
        assert not lost
        assert server.statistics().held == 1
        executor.release(lease)


async def test_client_ids_of_tenants_are_apart(secrets: Secrets) -> None:
    async with (
        guarded_limiter(secrets) as server,
        unary_stub(server, secrets.security()) as service,
        unary_stub(server, secrets.security("team")) as other,
    ):
        mine = await service.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"), timeout=10)
        own = await other.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="1"), timeout=10)
        assert own.lease.seq != mine.lease.seq  # it does not join the other's request
        by_name = pb.ReleaseTokenRequest(client_id="me", request_id="1")
        by_lease = pb.ReleaseTokenRequest(lease=mine.lease)
        assert (await other.ReleaseToken(by_name, timeout=10)).released
        assert not (await other.ReleaseToken(by_name, timeout=10)).released
        assert not (await other.ReleaseToken(by_lease, timeout=10)).released
        assert server.statistics().held == 1
        again = await other.AcquireToken(pb.AcquireTokenRequest(client_id="me", request_id="2"), timeout=10)
        assert (await other.ReleaseToken(pb.ReleaseTokenRequest(lease=again.lease), timeout=10)).released
        assert (await service.ReleaseToken(by_lease, timeout=10)).released
