"""A client of several executors when files, names and servers fail: what others need goes on, and nobody waits long."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import ChannelConnectivity

from executor_service import ExecutorClient, ExecutorUnavailable, Session, SessionInfo
from executor_service.client import balance, executors
from executor_service.client.executors import Fleet, Member, OpenChannel
from executor_service.v1.executor_pb2 import GetStatusRequest
from fairbox.errors import ConfigError
from fairbox.net.channels import open_channel
from fairbox.net.ports import free_ports
from fairbox.security import PLAINTEXT, ClientSecurity
from tests.executor import repositories
from tests.executor.servers import Server
from tests.limiter.chaos.proxy import Proxy
from tests.security.services import Secrets


def opens(security: ClientSecurity = PLAINTEXT) -> OpenChannel:
    return lambda address, options: open_channel(address, options, security)


def absent(count: int) -> list[str]:
    """Addresses at which nobody listens."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


@pytest.fixture
def mute() -> Iterator[list[str]]:
    """Two addresses that take connections and never say a word."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    try:
        yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return Secrets.make(tmp_path)


async def test_files_that_turn_bad_end_neither_calls_nor_the_search_for_servers(
    secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "RESOLVE_EVERY_S", 0.05)
    known, new = absent(2), absent(1)
    async with Fleet(",".join(known), opens(secrets.security())) as made:
        kept = secrets.client.cert.read_bytes()
        secrets.client.cert.write_text("half")
        made._list([*known, *new])
        await asyncio.sleep(0.5)
        assert made._task is not None
        assert not made._task.done()
        for _ in range(40):
            with made.take() as member:
                assert member.address in known
        with pytest.raises(ExecutorUnavailable, match="tls_cert is"), made.take(among=new):
            pass
        secrets.client.cert.write_bytes(kept)
        with made.take(among=new) as member:
            assert member.address == new[0]


async def entered(made: Fleet) -> None:
    """Takes a server for nothing."""
    async with made:
        with made.take():
            return


async def test_files_that_are_bad_from_the_beginning_are_named(secrets: Secrets) -> None:
    secrets.client.cert.write_text("half")
    for target in (absent(1), absent(2)):
        with pytest.raises(ConfigError, match="tls_cert is"):
            await entered(Fleet(",".join(target), opens(secrets.security())))


async def test_entering_leaves_no_channel_behind_when_it_is_cancelled(mute: list[str]) -> None:
    made = Fleet(",".join(mute), opens())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await made.__aenter__()
    assert not made._channels


async def test_a_call_does_not_take_longer_than_it_may(mute: list[str]) -> None:
    async with ExecutorClient(",".join(mute)) as executor:
        began = time.monotonic()
        with pytest.raises(ExecutorUnavailable):
            await executor.execute("print(1)", call_timeout=0.3)
        assert time.monotonic() - began < 10


async def test_a_name_may_be_an_address_of_version_6() -> None:
    async with Fleet("dns:///[::1]:50051", opens()) as made:
        assert made.addresses == ["[::1]:50051"]


@pytest.mark.parametrize("name", ["a..b", "nobody.invalid"])
async def test_a_name_that_means_nobody_is_no_crash(name: str) -> None:
    async with ExecutorClient(f"dns:///{name}:50051") as executor:
        with pytest.raises(ExecutorUnavailable, match="no address is known"):
            await executor.execute("print(1)")


async def test_a_resolver_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are few, and others need them."""
    asked, answer = [], threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        asked.append(1)
        answer.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 50051))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(executors, "_RESOLVE_WITHIN_S", 0.05)
    async with Fleet("dns:///slow.example:50051", opens()) as made:
        for _ in range(5):
            await made._resolve()
        answer.set()
        async with asyncio.timeout(20):
            while not made.addresses:
                await made._resolve()
        assert len(asked) == 1
    assert made.addresses == ["127.0.0.1:50051"]


async def test_of_more_servers_than_can_be_the_same_ones_stay() -> None:
    many = [f"127.0.0.1:{number}" for number in range(1, 400)]
    async with Fleet("127.0.0.1:1", opens()) as made:
        made._list(many)
        before = set(made.addresses)
        made._list(many[::-1])
        assert set(made.addresses) == before
        made._list(many[100:])
        assert before & set(many[100:]) <= set(made.addresses)
        assert len(made.addresses) == 256


@pytest.mark.parametrize("several", [False, True])
async def test_calls_are_told_that_their_client_was_closed(mute: list[str], several: bool) -> None:
    """They were not cancelled, and must not look as if they were."""
    async with ExecutorClient(",".join(mute) if several else mute[0]) as executor:
        made = executor._calls.fleet
        calls: list[asyncio.Task[Any]] = [asyncio.create_task(executor.execute("print(1)")) for _ in range(3)]
        calls += [asyncio.create_task(streamed(executor))]
        await asyncio.sleep(0.1)
    async with asyncio.timeout(20):
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, ExecutorUnavailable) and "was closed" in str(each) for each in ended), ended
    assert not made._channels


async def streamed(executor: ExecutorClient) -> Any:
    return [item async for item in executor.stream("print(1)")]


async def test_a_call_that_could_not_be_sent_goes_to_another_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may stop listening between the look at its connection and the call."""

    async def yes(_: Member, deadline: float) -> bool:
        return True

    monkeypatch.setattr(Member, "connected", yes)
    async with ExecutorClient(f"{absent(1)[0]},{server.target}") as executor:
        ended = [await executor.execute("print(1)") for _ in range(6)]
    assert all(each.ok for each in ended), ended


async def test_a_stream_begins_at_a_server_that_is_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "FIRST_PAUSE_S", 10.0)  # it must not end before the third one is asked
    async with ExecutorClient(",".join([*absent(2), server.target])) as executor:
        ended = [(await streamed(executor))[-1] for _ in range(6)]
    assert all(each.ok for each in ended), ended


async def test_a_session_whose_server_is_gone_has_ended() -> None:
    (gone,) = absent(1)
    async with ExecutorClient(",".join(absent(2))) as executor:
        executor._calls.homes["lost"] = frozenset({gone})
        assert await executor.delete_session("lost") is False
        assert len(executor._calls.homes) == 0


async def test_a_session_that_cannot_be_ended_hides_no_error_and_no_cancellation(
    mute: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_service.client.sessions._LAST_CALL_S", 0.3)
    async with ExecutorClient(mute[0]) as executor:
        session = Session(executor, SessionInfo("there"))
        with pytest.raises(ZeroDivisionError):
            async with session:
                raise ZeroDivisionError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), session:
                await asyncio.sleep(60)


async def test_a_workspace_is_prepared_elsewhere_while_its_usual_server_is_away(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, commit = repositories.project(tmp_path / "project")
    (dead,) = absent(1)
    monkeypatch.setattr("executor_service.client.client.preferred", lambda addresses, key: dead)
    async with ExecutorClient(f"{dead},{server.target}") as executor:
        workspace = await executor.prepare_workspace(bundle=repositories.bundle(folder), commit=commit)
        result = await executor.execute("print(1)", workspace_id=workspace.workspace_id)
        assert (result.stdout.text, result.served_by) == ("1\n", server.status().served_by)


async def test_a_large_bundle_does_not_stop_the_loop() -> None:
    """With many servers, of which one is chosen by what the source is. In processor time of the loop's thread."""
    bundle, longest = bytes(48 << 20), 0.0
    async with ExecutorClient(",".join(absent(64))) as executor:
        task = asyncio.create_task(executor.prepare_workspace(bundle=bundle, commit="0" * 40, call_timeout=1.0))
        while not task.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
        with pytest.raises(ExecutorUnavailable):
            task.result()
    assert longest < 3.0


async def test_a_repeated_call_waits_until_its_channel_has_let_the_broken_connection_go(server: Server) -> None:
    port, ready = int(server.target.rpartition(":")[2]), ChannelConnectivity.READY
    async with asyncio.timeout(60), Proxy(port) as proxy:
        channel = open_channel(proxy.address)
        async with Fleet(proxy.address, lambda address, options: channel) as fleet:
            with fleet.take() as member:
                deadline = asyncio.get_running_loop().time() + 60
                await member.stub.GetStatus(GetStatusRequest(), timeout=30)
                await member.settled(deadline)
                assert channel.get_state() is ready, "nothing was broken"
                proxy.reset()
                while channel.get_state() is ready:
                    await member.settled(deadline)
        with pytest.raises(ExecutorUnavailable, match="this client was closed"):
            await member.settled(deadline)
