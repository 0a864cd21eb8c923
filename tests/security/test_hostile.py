"""Connections and calls that mean harm, against the real services: others are served all the while.

What "served" means here: a call on a connection that was open before, and one on a new connection, end well within
their deadlines. How fast is a matter of benchmarks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.net.channels import open_channel
from fairbox.security import PLAINTEXT, ClientSecurity, Role
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from tests.executor.servers import running
from tests.executor.test_leases import limiter_running
from tests.security import wire
from tests.security.services import TOKENS, Secrets

ACQUIRE, EXECUTE = "/limiter.v1.LimiterService/AcquireToken", "/executor_service.v1.ExecutorService/ExecuteCode"
_DEADLINE_S = 10.0
"""Deadline of somebody else's call during an attack, on a machine that does other things as well."""
_HANDSHAKE_S = 10.0
"""As in fairbox.net.channels."""


@dataclass(frozen=True)
class Target:
    """A service that runs, and the honest client that uses it."""

    address: str
    pid: int
    security: ClientSecurity
    path: str
    """Path of the call that attackers make."""

    async def serve_one(self, channel: grpc.aio.Channel) -> None:
        """One whole call, which has to end well."""
        if self.path == ACQUIRE:
            stub: Any = limiter_pb2_grpc.LimiterServiceStub(channel)
            request = limiter_pb2.AcquireTokenRequest(client_id=str(time.monotonic_ns()))
            granted = await stub.AcquireToken(request, timeout=_DEADLINE_S)
            await stub.ReleaseToken(limiter_pb2.ReleaseTokenRequest(lease=granted.lease), timeout=_DEADLINE_S)
            return
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        answer = await stub.ExecuteCode(executor_pb2.ExecuteCodeRequest(code="print(6 * 7)"), timeout=_DEADLINE_S)
        assert answer.result.stdout.data == b"42\n"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Any]:
        """A connection of before; call what this yields to see that it, and a new one, are served."""
        async with open_channel(self.address, security=self.security) as old:
            await self.serve_one(old)

            async def still() -> None:
                await self.serve_one(old)
                async with open_channel(self.address, security=self.security) as new:
                    await self.serve_one(new)

            yield still
            await still()

    def connections(self) -> int:
        """Sockets that the service has open on its port, whatever it has open beside them."""
        port, process = f":{int(self.address.rpartition(':')[2]):04X}", Path(f"/proc/{self.pid}")
        lines = [line.split() for name in ("tcp", "tcp6") for line in (process / "net" / name).read_text().splitlines()]
        ours = {f"socket:[{line[9]}]" for line in lines if line[1].endswith(port)}
        found = 0
        for each in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += str(each.readlink()) in ours
        return found

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.make(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module", params=["limiter", "executor"])
def target(request: pytest.FixtureRequest, kept: Secrets) -> Iterator[Target]:
    """Each service in turn, with tokens; without TLS, so that frames can be written by hand."""
    security = kept.security(tls=False)
    settings = [f"{role}_token_file={kept.tokens(role)}" for role in Role]
    if request.param == "limiter":
        with limiter_running(*settings) as limiter:
            yield Target(limiter.target, limiter.process.pid, security, ACQUIRE)
    else:
        with running(settings[0], settings[2]) as server:
            yield Target(server.target, server.pid, security, EXECUTE)


ONE = pytest.mark.parametrize("target", ["executor"], indirect=True)
"""Both services have the same server of gRPC: nothing of what the one or the other adds takes part."""


async def test_a_message_above_the_bound_is_refused_and_nothing_else_happens(target: Target) -> None:
    options = [("grpc.max_send_message_length", -1)]
    async with target.serving(), open_channel(target.address, options, target.security) as channel:
        call: Any = channel.unary_unary(target.path, request_serializer=bytes)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(bytes(193 << 20), timeout=30)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in (error.value.details() or "")


async def test_a_strangers_message_is_not_taken_in(target: Target) -> None:
    """Without a token a call is refused when its headers are there; its 128 MiB never come."""
    before = target.resident_mib()
    async with target.serving(), open_channel(target.address) as channel:
        call: Any = channel.unary_unary(target.path, request_serializer=bytes)
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(bytes(128 << 20), timeout=30)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert target.resident_mib() - before < 64


@ONE
async def test_huge_metadata_is_refused(target: Target) -> None:
    async with target.serving(), open_channel(target.address, security=target.security) as channel:
        call: Any = channel.unary_unary(target.path, request_serializer=bytes)
        for size in (20_000, 100_000, 1_000_000) * 5:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(b"", metadata=(("x", "y" * size),), timeout=_DEADLINE_S)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@ONE
async def test_a_flood_of_pings_ends_its_connection(target: Target) -> None:
    async with target.serving() as still:
        taken = await asyncio.to_thread(wire.pour, target.address, wire.PREFACE, wire.PING * 50, 100_000)
        assert taken < 100_000
        await still()


@ONE
@pytest.mark.parametrize("kind", ["settings", "resets"])
async def test_floods_of_frames_leave_others_served(target: Target, kind: str) -> None:
    """Rapid resets are CVE-2023-44487."""
    ids = range(1, 20_000, 2)  # which must grow, so that each connection can have them once
    calls = b"".join(wire.headers(each, target.path) + wire.reset(each) for each in ids)
    again, count = (wire.SETTINGS * 100, 2_000) if kind == "settings" else (calls, 1)
    async with target.serving() as still:
        for _ in range(3):
            await asyncio.to_thread(wire.pour, target.address, wire.PREFACE, again, count)
            await still()


@ONE
async def test_calls_that_never_send_their_message_hold_nothing(target: Target) -> None:
    """They have no token, so that each is over at once, and the next thousands take the memory of those before."""
    calls = b"".join(wire.headers(each, target.path) for each in range(1, 10_000, 2))
    async with target.serving() as still:
        with contextlib.ExitStack() as connections:
            levels = [target.resident_mib()]
            while len(levels) < 40:
                connections.enter_context(wire.many(target.address, 1, wire.PREFACE + calls))
                await still()
                levels.append(target.resident_mib())
                if len(levels) > 6 and levels[-1] - levels[-7] < 100:  # 30,000 calls that were held would take 450
                    return
    raise AssertionError(f"memory grows with each connection: {levels} MiB")


async def test_a_burst_of_honest_calls_is_answered(target: Target) -> None:
    """More at once than gRPC lets wait by itself, from one client."""
    async with target.serving(), open_channel(target.address, security=target.security) as channel:
        service = "/limiter.v1.LimiterService/" if target.path == ACQUIRE else "/executor_service.v1.ExecutorService/"
        method, request = ("ReleaseToken", limiter_pb2.ReleaseTokenRequest(client_id="x", request_id="1"))
        sent = request.SerializeToString() if target.path == ACQUIRE else b""
        call: Any = channel.unary_unary(service + (method if target.path == ACQUIRE else "GetStatus"))
        answers = await asyncio.gather(*(call(sent, timeout=120) for _ in range(4_000)))
        assert len(answers) == 4_000


async def test_a_flood_of_calls_without_tokens_leaves_others_served(target: Target) -> None:
    """Attacks from four connections, each with 50 calls at once, for as long as others make ten calls."""

    async def attack(channel: grpc.aio.Channel) -> None:
        call: Any = channel.unary_unary(target.path, request_serializer=bytes)
        metadata = (("authorization", "Bearer " + "guess" * 5),)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(b"", metadata=metadata, timeout=_DEADLINE_S)
                raise AssertionError("a guess was let in")

    async with contextlib.AsyncExitStack() as stack:
        still = await stack.enter_async_context(target.serving())
        channels = [await stack.enter_async_context(open_channel(target.address)) for _ in range(4)]
        attackers = [asyncio.create_task(attack(channel)) for channel in channels for _ in range(50)]
        try:
            for _ in range(5):
                await still()
        finally:
            for attacker in attackers:
                attacker.cancel()
            await asyncio.gather(*attackers, return_exceptions=True)
    assert all(attacker.cancelled() for attacker in attackers)


@ONE
async def test_thousands_of_silent_connections_leave_others_served(target: Target) -> None:
    """Two kinds: those that say nothing, and those that begin HTTP/2 and call nothing."""
    async with target.serving() as still:
        before = target.connections()
        with wire.many(target.address, 1_500) as silent, wire.many(target.address, 1_500, wire.PREFACE):
            assert len(silent) == 1_500
            await still()
            deadline = time.monotonic() + 3 * _HANDSHAKE_S
            while not all(wire.cut_off(connection) for connection in silent):
                assert time.monotonic() < deadline, "silent connections are kept"
                await asyncio.sleep(0.5)
                await still()
        deadline = time.monotonic() + 10
        while target.connections() > before + 10:
            assert time.monotonic() < deadline, "connections are not given back"
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def small(kept: Secrets) -> Iterator[tuple[Target, str]]:
    """A limiter with TLS, tokens and room for 200 connections; and where operators reach it."""
    settings = kept.server_settings() | {"max_connections": 200}
    with limiter_running(*(f"{name}={value}" for name, value in settings.items())) as limiter:
        yield Target(limiter.target, limiter.process.pid, kept.security(), ACQUIRE), limiter.admin


async def test_half_handshakes_are_ended_and_give_their_places_back(small: tuple[Target, str], kept: Secrets) -> None:
    """A slow loris: more connections than may be, that trickle a TLS hello. Connections of before are served, operators
    too, and others as soon as the handshakes' time is over."""
    target, admin = small
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)
    async with (
        open_channel(target.address, security=target.security) as old,
        open_channel(admin, security=kept.security("admin")) as channel,
    ):
        await target.serve_one(old)
        operator: Any = limiter_pb2_grpc.LimiterAdminServiceStub(channel)
        with wire.many(target.address, 1_000, hello[:1]) as slow:
            began = time.monotonic()
            said = 1
            while not all(wire.cut_off(connection) for connection in slow):
                assert time.monotonic() - began < 3 * _HANDSHAKE_S, "half handshakes are kept"
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.send(hello[said : said + 1])
                said += 1
                await target.serve_one(old)
                await operator.GetStatus(limiter_pb2.GetStatusRequest(), timeout=_DEADLINE_S)
                assert target.connections() < 300
                await asyncio.sleep(0.5)
        async with open_channel(target.address, security=target.security) as new:
            await target.serve_one(new)


@pytest.mark.xfail(
    reason="gRPC counts connections, and knows no sources: docs/explanation/security.md", raises=grpc.aio.AioRpcError
)
async def test_a_flood_that_is_renewed_shuts_no_newcomers_out(kept: Secrets) -> None:
    """A peer that opens as many connections as it may, again and again, keeps others from connecting."""
    with limiter_running("max_connections=50") as limiter:
        target = Target(limiter.target, limiter.process.pid, PLAINTEXT, ACQUIRE)
        async with open_channel(target.address) as old:
            await target.serve_one(old)
            with wire.many(target.address, 100, wire.PREFACE):
                await target.serve_one(old)
                async with open_channel(target.address) as new:
                    await target.serve_one(new)


async def test_no_token_is_left_in_a_refusal(target: Target, kept: Secrets) -> None:
    async with open_channel(target.address) as channel:
        call: Any = channel.unary_unary(target.path, request_serializer=bytes)
        for given in (TOKENS[Role.ADMIN], TOKENS[Role.EXECUTOR], f"{TOKENS[Role.CLIENT]}x"):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(b"", metadata=(("authorization", f"Bearer {given}"),), timeout=_DEADLINE_S)
            refusal = error.value
            assert "role client" in (refusal.details() or "")
            said = f"{refusal!r} {refusal.initial_metadata()} {refusal.trailing_metadata()}"
            assert not any(token in said for token in (given, *TOKENS.values()))
    assert not any(token in repr(kept.security()) for token in TOKENS.values())
