"""A client that waits on a connection that carries nothing any more gives it up within 3 s, and keeps its place."""

from __future__ import annotations

import asyncio

from limiter import Lease, LimiterClient, ReleaseOutcome
from limiter.client.keep_alive import KeepAlive
from limiter.client.machine import SessionMachine
from limiter.core import SessionKind
from limiter.server.peer import quiet_for
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.chaos.proxy import Proxy
from tests.limiter.servers import limiter_server, queued, until
from tests.limiter.test_machine import LEASE, ask, frame, grant, open_machine, welcome


def test_idle_client_sends_no_heartbeats() -> None:
    machine = open_machine()
    assert machine.next_deadline() is None
    assert machine.take_frame(1000.0) is None
    assert not machine.stalled(1000.0)


def test_client_that_waits_asks_after_silence_and_gives_up_after_as_long_again() -> None:
    machine = open_machine()
    ask(machine)
    frame(machine)
    assert machine.next_deadline() == 1.5
    assert machine.take_frame(1.4) is None
    assert frame(machine, 1.5).heartbeat == 1
    assert machine.take_frame(2.9) is None, "one is on its way"
    assert machine.next_deadline() == 3.0
    assert not machine.stalled(2.9)
    assert machine.stalled(3.0)
    machine.disconnected()
    assert not machine.stalled(9.0)
    assert machine.next_deadline() is None


def test_client_that_holds_a_lease_asks_too_and_stops_when_it_has_released_it() -> None:
    machine = open_machine()
    grant(machine, ask(machine))
    frame(machine)
    assert frame(machine, 1.5).heartbeat == 1
    machine.received(pb.SessionResponse(heartbeat_ack=1), 1.6)
    assert machine.next_deadline() == 3.1
    machine.release(Lease.of(LEASE), ReleaseOutcome.UNUSED)
    frame(machine, 1.7)
    assert machine.next_deadline() is None


def test_whatever_comes_is_a_sign_of_life() -> None:
    machine = open_machine()
    ask(machine)
    frame(machine)
    frame(machine, 1.5)
    machine.received(pb.SessionResponse(queued=[pb.Queued(request_id="another")]), 2.9)
    assert not machine.stalled(4.3)
    assert machine.next_deadline() == 4.4


def test_client_that_asks_after_a_long_silence_says_so_at_once() -> None:
    machine = open_machine()
    ask(machine, 100.0)
    asked = frame(machine, 100.0)
    assert (len(asked.acquires), asked.heartbeat) == (1, 1)
    assert machine.next_deadline() == 101.5


def test_client_that_was_stopped_itself_reads_first_what_has_come_meanwhile() -> None:
    pulse = KeepAlive()
    pulse.opened(0.0, 1.5)
    pulse.beat(1.5)
    assert not pulse.dead(9.0)
    assert pulse.give_up_at() == 9.25
    assert pulse.dead(9.25)
    pulse.heard(9.26)
    assert not pulse.dead(9.3)


def test_limiter_says_how_long_silence_may_be() -> None:
    machine = SessionMachine(SessionKind.CLIENT, "s")
    machine.connected(0.0)
    machine.take_frame(0.0)
    answer = welcome()
    answer.welcome.quiet_s = 4.0
    machine.received(answer, 0.0)
    ask(machine)
    frame(machine)
    assert machine.next_deadline() == 4.0
    assert (quiet_for(1), quiet_for(10_000)) == (1.5, 20.0)


async def test_client_behind_a_dead_connection_comes_back_and_keeps_its_place() -> None:
    async with (
        limiter_server(1) as server,
        Proxy(int(server.address.rpartition(":")[2])) as proxy,
        LimiterClient(server.address) as other,
        LimiterClient(proxy.address) as client,
    ):
        order: list[str] = []

        async def use(who: str, limiter: LimiterClient) -> None:
            async with limiter.lease(queue_timeout=300.0):
                order.append(who)

        async with other.lease():
            tasks = [asyncio.create_task(use("cut", client))]
            await queued(server, 1)
            tasks.append(asyncio.create_task(use("other", other)))
            await queued(server, 2)
            proxy.lose()
            await until(lambda: not client.connected, within=30)
            await until(lambda: client.connected, within=30)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        assert order == ["cut", "other"]
