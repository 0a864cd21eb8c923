"""The simulated loop and network themselves: clocks that differ, processes that stop, ways that are blocked."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.limiter.sim.clock import MachineClock
from tests.limiter.sim.connection import Broken, End, dial
from tests.limiter.sim.loop import Process, SimLoop
from tests.limiter.sim.network import Network
from tests.limiter.sim.trace import Trace


def test_timers_fire_by_the_clock_of_their_process() -> None:
    loop = SimLoop()
    fast = Process("fast", MachineClock(rate=2.0, offset=100.0))
    shown: list[float] = []

    async def program() -> None:
        await asyncio.sleep(3.0)
        shown.append(asyncio.get_running_loop().time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.sleep(5.0)
        shown.append(asyncio.get_running_loop().time())

    loop.run_until_complete(loop.spawn(fast, program))
    assert shown == pytest.approx([103.0, 104.0])
    assert loop.true_time == pytest.approx(2.0)
    loop.close()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("as they came", ["timer", "message"]),
        ("messages first", ["message", "timer"]),
        ("timers first", ["timer", "message"]),
    ],
)
def test_stopped_process_does_nothing_until_it_goes_on(order: str, expected: list[str]) -> None:
    loop = SimLoop()
    process = Process("p", MachineClock(1.0, 0.0))
    done: list[str] = []

    async def program() -> None:
        await asyncio.sleep(1.0)
        done.append("timer")

    async def history() -> None:
        loop.spawn(process, program)
        await asyncio.sleep(0.5)
        loop.stop_process(process)
        await asyncio.sleep(1.0)
        loop.hand_over(process, done.append, "message")
        await asyncio.sleep(1.0)
        assert done == []
        loop.resume_process(process, order)
        await asyncio.sleep(0.1)

    loop.run_until_complete(history())
    assert sorted(done) == sorted(expected)
    assert process.stopped_for == pytest.approx(2.0)
    if order == "messages first":
        assert done == expected
    loop.close()


def test_loop_says_so_when_everybody_waits() -> None:
    loop = SimLoop()
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(RuntimeError, match="everybody waits"):
        loop.run_until_complete(waiting)
    loop.call_soon(waiting.cancel)
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()


def pair(loop: SimLoop, network: Network) -> tuple[Process, Process, list[End]]:
    """Two processes, and the ends that the second has accepted."""
    near, far = (Process(name, MachineClock(1.0, 0.0)) for name in ("near", "far"))
    accepted: list[End] = []
    network.listen(far, accepted.append)
    return near, far, accepted


def test_what_is_sent_into_a_partition_arrives_in_order_when_it_heals() -> None:
    loop = SimLoop()
    network = Network(loop, random.Random(1), Trace(lambda: loop.true_time))
    near, _, accepted = pair(loop, network)

    async def history() -> list[str]:
        end = dial(network, near, "far")
        await end.send("before")
        await asyncio.sleep(1.0)
        network.block("near", "far", 5.0)
        for number in range(5):
            await end.send(f"meanwhile {number}")
        await asyncio.sleep(4.0)
        assert list(accepted[0]._inbox) == ["before"]
        await asyncio.sleep(3.0)
        return list(accepted[0]._inbox)

    assert loop.run_until_complete(history()) == ["before", *(f"meanwhile {number}" for number in range(5))]
    loop.close()


def test_dead_process_resets_its_connections_and_a_lost_machine_does_not() -> None:
    loop = SimLoop()
    network = Network(loop, random.Random(1), Trace(lambda: loop.true_time))
    near, far, _ = pair(loop, network)

    async def lives_on(*, lost: bool) -> float:
        end = dial(network, near, "far")
        await asyncio.sleep(1.0)
        died = loop.true_time
        network.killed(far, lost=lost)
        with pytest.raises(Broken):
            await end.receive()
        return loop.true_time - died

    assert loop.run_until_complete(lives_on(lost=False)) < 1.0
    network.listen(far, lambda end: None)
    assert 10.0 < loop.run_until_complete(lives_on(lost=True)) < 15.0, "only pings tell"
    loop.close()
