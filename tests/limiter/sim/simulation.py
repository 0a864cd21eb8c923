"""One history from its seed to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from limiter import LimiterError
from limiter.core import SessionKind
from tests.limiter.sim.audit import audit
from tests.limiter.sim.client_node import ClientNode
from tests.limiter.sim.executor_node import ExecutorNode
from tests.limiter.sim.forger_node import ForgerNode
from tests.limiter.sim.limiter_node import LimiterNode
from tests.limiter.sim.loop import SimLoop
from tests.limiter.sim.nemesis import Nemesis
from tests.limiter.sim.operator import Operator
from tests.limiter.sim.records import StoreNode
from tests.limiter.sim.scenario import Scenario
from tests.limiter.sim.unary import FORGER
from tests.limiter.sim.unary_node import UNARY, UnaryNode
from tests.limiter.sim.world import STORE, Node, World

_RECONNECTED_WITHIN_S = 20.0
"""After the last fault every connection that looks alive is alive: dead ones are noticed within 14 s."""
_WORKERS: tuple[type[Node], ...] = (ClientNode, UnaryNode, ForgerNode, ExecutorNode)
_QUIET_WITHIN_S = 120.0
"""True seconds after the last fault in which every request has to end: the longest queue timeout, backstop, program
and partition together."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a scenario."""

    scenario: Scenario
    violations: tuple[tuple[str, str], ...]
    """Kind and sentence; empty: all is well."""
    counts: Counter[str]
    digest: str
    """Hash of the whole history."""

    def __str__(self) -> str:
        seed = self.scenario.seed
        head = f"seed {seed} with {', '.join(self.scenario.faults) or 'no faults'}; replay it by "
        head += f"`python -m tests.limiter.sim {seed} --trace`"
        return "\n".join([head, *(f"  {kind}: {text}" for kind, text in self.violations)])


def simulate(scenario: Scenario, show: Callable[[str], None] | None = None) -> Verdict:
    """Runs one history; `show` gets every line of its trace."""
    loop = SimLoop()
    world = World(scenario, loop, make_node, show)

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        world.checker.violated("error", f"{context.get('message')}: {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_history(world))
    except RuntimeError as error:
        world.checker.violated("error", f"the loop has failed: {error}")
    finally:
        _abandon(loop)
        asyncio.set_event_loop(None)
        loop.close()
    return Verdict(scenario, tuple(world.checker.violations), world.checker.counts, world.trace.digest())


def make_node(world: World, name: str) -> Node:
    if name == STORE:
        return StoreNode(world)
    if name.startswith("limiter"):
        return LimiterNode(world, name)
    if name.startswith(UNARY):
        return UnaryNode(world, name)
    if name.startswith(FORGER):
        return ForgerNode(world, name)
    return ExecutorNode(world, name) if name.startswith("executor") else ClientNode(world, name)


def _abandon(loop: SimLoop) -> None:
    """After a failure: ends what is left without a word."""
    loop.set_exception_handler(lambda _, context: None)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        with contextlib.suppress(RuntimeError):
            loop.run_until_complete(asyncio.wait(left))


async def _history(world: World) -> None:
    scenario = world.scenario
    names = [STORE] if scenario.limiters else []
    names += [f"limiter{number}" for number in range(max(1, scenario.limiters))]
    names += [f"executor{number}" for number in range(scenario.executors)]
    names += [f"client{number}" for number in range(scenario.clients)]
    names += [f"{UNARY}{number}" for number in range(scenario.unary)]
    names += [f"{FORGER}{number}" for number in range(scenario.forgers)]
    for name in names:
        world.start(name)
    nemesis = world.loop.create_task(Nemesis(world).run())
    auditor = world.loop.create_task(audit(world))
    operator = Operator(world) if scenario.operator else None
    changes = world.loop.create_task(operator.run()) if operator is not None else None
    await asyncio.sleep(scenario.busy)
    world.busy = False
    await nemesis
    if operator is not None and changes is not None:
        await changes
        operator.restore()
    auditor.cancel()
    if await _quiet(world):
        await _probe(world)
    await asyncio.sleep(0.5)
    _check_nothing_left(world)
    for kind in (UnaryNode, ForgerNode, ClientNode, ExecutorNode, LimiterNode, StoreNode):
        for name in [name for name, node in world.nodes.items() if isinstance(node, kind)]:
            await world.leave(name)
    await world.ended()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        world.checker.violated("leak", f"{len(left)} tasks are left, for example {next(iter(left))!r}")


def _of(world: World, kind: type[Node]) -> list[Any]:
    return [node for node in world.nodes.values() if isinstance(node, kind)]


async def _quiet(world: World) -> bool:
    """Says whether every request has ended in time."""
    deadline = world.loop.true_time + _QUIET_WITHIN_S
    while world.loop.true_time < deadline:
        if all(node.idle for kind in _WORKERS for node in _of(world, kind)):
            return True
        await asyncio.sleep(0.25)
    for node in [node for kind in _WORKERS for node in _of(world, kind)]:
        if not node.idle:
            world.checker.violated("stuck", f"{node.process} still waits {_QUIET_WITHIN_S:.0f} s after the last fault")
    return False


async def _probe(world: World) -> None:
    """Every client gets a token of every bucket, soon."""
    await asyncio.sleep(_RECONNECTED_WITHIN_S)
    for bucket in world.scenario.buckets:
        probes = [world.loop.spawn(node.process, node.prober(bucket.name)) for node in _of(world, ClientNode)]
        for probe in probes:
            try:
                await probe
            except LimiterError as error:
                world.checker.violated("stuck", f"a client gets nothing when all is quiet: {error}")


def _check_nothing_left(world: World) -> None:
    checker = world.checker
    leaders = [node for node in _of(world, LimiterNode) if node.leads]
    if len(leaders) != 1:
        checker.violated("leaders", f"{len(leaders)} limiters lead")
    for node in leaders:
        statistics = node.runner.core.statistics(node.runner.clock.now())
        if statistics.held or statistics.queued:
            checker.violated("leak", f"{statistics.held} tokens are held and {statistics.queued} requests wait")
        for session in node.runner.core.sessions(1000):
            if session.kind is SessionKind.UNARY:
                checker.violated("leak", f"a session of unary calls is left: {session.session_id}")
    for node in _of(world, ClientNode):
        if node.client.waiting or node.client.held:
            checker.violated("leak", f"{node.process} waits for {node.client.waiting} and holds {node.client.held}")
    for node in _of(world, ExecutorNode):
        if node.session.held:
            checker.violated("leak", f"{node.process} holds {node.session.held}")
    if checker.running:
        checker.violated("leak", f"{len(checker.running)} programs run")
