"""With default times programs outlive what a control plane does to limiters; only dead executors are waited for.

The limiters lead as in k8s/, by a record whose store answers or doesn't, on a clock that is simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from limiter import ExecutorSession, Lease
from limiter.config import LimiterConfig
from tests.limiter.sim.client_node import ClientNode
from tests.limiter.sim.executor_node import ExecutorNode
from tests.limiter.sim.limiter_node import LimiterNode
from tests.limiter.sim.loop import SimLoop
from tests.limiter.sim.scenario import draw
from tests.limiter.sim.simulation import make_node
from tests.limiter.sim.world import STORE, World

_CONFIG = LimiterConfig(leader="k8s")
_TTL_S = 60.0


async def _until(condition: Callable[[], bool], within: float) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.05)


async def _leader(world: World, within: float) -> LimiterNode:
    """The limiter that leads, once there is one."""
    leaders: list[LimiterNode] = []

    def found() -> bool:
        leaders[:] = [node for node in world.nodes.values() if isinstance(node, LimiterNode) and node.leads]
        return bool(leaders)

    await _until(found, within)
    return leaders[0]


async def _takeover(world: World) -> None:
    world.kill((await _leader(world, 1.0)).process.name)
    await _leader(world, 8.0)


async def _frozen_api_server(world: World) -> None:
    world.loop.stop_process(world.nodes[STORE].process)
    await asyncio.sleep(40.0)
    assert not any(isinstance(node, LimiterNode) and node.leads for node in world.nodes.values())
    world.loop.resume_process(world.nodes[STORE].process, "as they came")


async def _slow_restart(world: World) -> None:
    limiters = [name for name, node in world.nodes.items() if isinstance(node, LimiterNode)]
    for name in limiters:
        world.kill(name)
    await asyncio.sleep(45.0)
    world.start(limiters[0])


@dataclass(frozen=True)
class _Stage:
    """A cluster in which one program runs under the only token, and the client waits for the next one."""

    world: World
    executor: ExecutorSession
    lease: Lease
    next: asyncio.Task[Lease]


def _play(history: Callable[[_Stage], Awaitable[None]]) -> None:
    drawn = draw(1, ())
    scenario = replace(
        drawn,
        limiters=2,
        lead=_CONFIG.lease_duration_s,
        timing=_CONFIG.timing(),
        buckets=(replace(drawn.buckets[0], max_in_flight=1),),
        unavailable_after=None,
    )
    loop = SimLoop()
    world = World(scenario, loop, make_node)
    world.busy = False  # its client asks nothing by itself

    async def run() -> None:
        for name in (STORE, "limiter0", "limiter1", "executor0", "client0"):
            world.start(name)
        executor, client = world.nodes["executor0"], world.nodes["client0"]
        assert isinstance(executor, ExecutorNode)
        assert isinstance(client, ClientNode)
        await _until(lambda: executor.session.connected and client.client.connected, within=10.0)

        def ask() -> asyncio.Task[Lease]:
            return loop.spawn(client.process, client.client.lease(queue_timeout=600.0).__aenter__)

        lease = await ask()
        assert (await loop.spawn(executor.process, lambda: executor.session.bind(lease))).bound
        waiting = ask()
        await asyncio.sleep(10.0)
        await history(_Stage(world, executor.session, lease, waiting))
        for name in sorted(world.nodes):  # the store last
            await world.leave(name)
        await world.ended()
        assert not world.checker.violations

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.parametrize("fault", [_takeover, _frozen_api_server, _slow_restart])
def test_programs_outlive(fault: Callable[[World], Awaitable[None]]) -> None:
    async def history(stage: _Stage) -> None:
        lost: list[Lease] = []
        executor, epoch = stage.executor, stage.executor.epoch
        executor.when_lost(stage.lease, lambda: lost.append(stage.lease))
        await fault(stage.world)
        await _until(lambda: executor.connected and executor.epoch > epoch, within=12.0)
        await asyncio.sleep(2 * _TTL_S)
        assert executor.vouches(stage.lease)
        assert not lost
        assert not stage.next.done(), "the only token is in use"
        executor.release(stage.lease)
        await stage.next

    _play(history)


def test_share_of_a_dead_executor_is_counted_for_its_time_and_then_granted() -> None:
    async def history(stage: _Stage) -> None:
        stage.world.kill("executor0")
        died = stage.world.loop.true_time
        await stage.next
        assert 0.96 * _TTL_S - 1.5 < stage.world.loop.true_time - died < 1.04 * _TTL_S + 0.5

    _play(history)


def test_executor_that_ended_in_order_is_not_waited_for() -> None:
    async def history(stage: _Stage) -> None:
        stage.executor.release(stage.lease)
        await stage.next
        await stage.world.leave("executor0")
        await _takeover(stage.world)
        leader = await _leader(stage.world, 1.0)
        core = leader.runner.core if leader.runner is not None else None
        assert core is not None
        await _until(lambda: not core.recovering, _CONFIG.timing().holder_return)  # which clients have in any case

    _play(history)
