"""The server shell: addresses, health, one sentence when something is wrong, exit codes."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairbox.errors import ConfigError
from fairbox.net.channels import open_channel
from fairbox.net.serving import HealthServer, check_address
from tests.limiter.servers import until


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:65535", "localhost:0"])
def test_loopback_needs_no_permission(address: str) -> None:
    check_address(address, insecure=False)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_listening_beyond_loopback_needs_insecure(address: str) -> None:
    with pytest.raises(ConfigError, match="not loopback"):
        check_address(address, insecure=False)
    check_address(address, insecure=True)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:65536"])
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        check_address(address, insecure=True)


@pytest.mark.parametrize(("listen", "warned"), [("0.0.0.0:0", True), ("127.0.0.1:0", False)])
async def test_an_open_port_is_said_in_the_log(listen: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with HealthServer(listen, insecure=True):
        pass
    assert ("whoever reaches this port may use it" in caplog.text) is warned


async def test_readiness_follows_the_service_and_liveness_does_not() -> None:
    async with HealthServer("127.0.0.1:0") as health, open_channel(health.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def check(name: str) -> int:
            response = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            return int(response.status)

        serving, not_serving = 1, 2
        assert [await check(n) for n in ("", "readiness", "liveness")] == [not_serving, not_serving, serving]
        await health.set_ready(True)
        assert [await check(n) for n in ("", "readiness", "liveness")] == [serving] * 3
        with pytest.raises(grpc.aio.AioRpcError):
            await check("unknown")


async def test_whoever_watches_health_takes_little() -> None:
    """Anybody may, and each watch is memory."""
    async with HealthServer("127.0.0.1:0") as health, open_channel(health.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service="liveness")) for _ in range(100)]
        reading = [asyncio.ensure_future(watch.read()) for watch in watches]
        await until(lambda: sum(each.done() for each in reading) >= 16)
        done, waiting = await asyncio.wait(reading, timeout=1)
        assert len(done) == 16
        async with open_channel(health.address) as other:
            request = health_pb2.HealthCheckRequest(service="liveness")
            assert (await health_pb2_grpc.HealthStub(other).Check(request, timeout=20)).status == 1
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
