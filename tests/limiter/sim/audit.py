"""Compares, while the history goes on, what the leader believes of whoever is connected with what they know themselves.

Differences that last are mistakes where connected peers hear each other promptly: a request that only one side knows,
a lease that is counted for somebody who does not have it.
"""

from __future__ import annotations

import asyncio

from limiter.client.lease import Lease
from limiter.client.machine import SessionMachine
from limiter.core import LimiterCore
from limiter.core.lease import Session
from tests.limiter.sim.client_node import ClientNode
from tests.limiter.sim.executor_node import ExecutorNode
from tests.limiter.sim.limiter_node import LimiterNode
from tests.limiter.sim.world import World

_EVERY_S = 1.0
"""Time between two looks: a difference seen at both has lasted longer than any message takes."""

Finding = tuple[str, str, str]
"""Kind, whose, and what."""


async def audit(world: World) -> None:
    """Until it is cancelled."""
    before: set[Finding] = set()
    while world.scenario.prompt:
        await asyncio.sleep(_EVERY_S)
        found = _look(world)
        for kind, name, what in sorted(found & before):
            world.checker.violated(kind, f"{what} of {name}, for {_EVERY_S:.0f} s")
        before = found


def _look(world: World) -> set[Finding]:
    leaders = [node for node in world.nodes.values() if isinstance(node, LimiterNode) and node.leads]
    if len(leaders) != 1 or leaders[0].runner is None:
        return set()
    core = leaders[0].runner.core
    found: set[Finding] = set()
    for node in world.nodes.values():
        if isinstance(node, ClientNode):
            machine = node.client._runner.machine
        elif isinstance(node, ExecutorNode):
            machine = node.session._runner.machine
        else:
            continue
        session = core._ledger.sessions.get(machine.session_id)
        if machine.welcomed and machine.epoch == core.epoch and session is not None and session.connected:
            found |= {(kind, node.process.name, what) for kind, what in _differences(core, session, machine)}
    return found


def _differences(core: LimiterCore, session: Session, machine: SessionMachine) -> set[tuple[str, str]]:
    queued = {request.request_id for request in session.requests.values() if request.waiting}
    known = {request.request_id for request in session.requests.values()}
    found = {("ghost", f"request {each} is in the queue and was withdrawn") for each in queued - set(machine.waiting)}
    found |= {("lost", f"request {each} waits and is not known") for each in set(machine.waiting) - known}
    mine = {(lease.epoch, lease.seq) for lease in _in_hand(machine)}
    for lease in session.leases.values():
        if lease.lease_id not in mine:
            found.add(("phantom", f"lease {lease.lease_id} is counted and not held"))
    return found


def _in_hand(machine: SessionMachine) -> list[Lease]:
    return [*machine.holdings.held, *machine._binding]
