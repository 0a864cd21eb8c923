"""Fair order: round robin over tenants, by ticket within a tenant."""

from __future__ import annotations

from typing import Any

from limiter.core import BucketOrder, LeaseId, LimiterCore, SessionKind, Ticket
from limiter.core.effects import Effect, Granted, Queued
from limiter.core.events import Acquire, Disconnect, HeldLease, Hello, Release, Tick
from tests.limiter.cores import granted, listed, make_core, only

FAIR: dict[str, Any] = {"order": BucketOrder.FAIR_BY_TENANT}


def ask(core: LimiterCore, request: str, tokens: int = 1, session: str = "c") -> list[Effect]:
    """A request whose tenant is its first letter."""
    return core.handle(Acquire(session, request, tokens=tokens, tenant=request[0]), 0.0)


def drain(core: LimiterCore, lease: LeaseId, session: str = "c") -> list[str]:
    """Releases again and again; the order of the grants."""
    order: list[str] = []
    while True:
        grants = [each for each in core.handle(Release(session, lease), 1.0) if isinstance(each, Granted)]
        if not grants:
            return order
        order += [grant.request_id for grant in grants]
        lease, session = grants[-1].lease, grants[-1].session_id


def test_tenants_take_turns() -> None:
    core = make_core(1, **FAIR)
    lease = only(Granted, ask(core, "x")).lease
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        ask(core, name)
    assert listed(core) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert drain(core, lease) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_requests_of_a_lost_stream_are_skipped_and_return_by_their_tickets() -> None:
    core = make_core(1, **FAIR)
    lease = only(Granted, ask(core, "x", session="d")).lease
    tickets = {name: only(Queued, ask(core, name)).ticket for name in ("a1", "a2")}
    ask(core, "a3", session="d")
    ask(core, "b1", session="d")
    core.handle(Disconnect("c"), 0.0)
    assert listed(core) == ["a3", "b1"]
    back = tuple(Acquire("c", name, tenant="a", ticket=ticket) for name, ticket in tickets.items())
    core.handle(Hello("c", SessionKind.CLIENT, queued=back), 0.5)
    assert listed(core) == ["a1", "b1", "a2", "a3"]
    assert drain(core, lease, "d") == ["a1", "b1", "a2", "a3"]


def test_a_hello_of_a_stream_that_was_not_lost_costs_nobody_a_turn() -> None:
    core = make_core(1, **FAIR)
    lease = only(Granted, ask(core, "x", session="d")).lease
    tickets = {name: only(Queued, ask(core, name)).ticket for name in ("a1", "b1")}
    ask(core, "b2", session="d")
    back = tuple(Acquire("c", name, tenant=name[0], ticket=ticket) for name, ticket in tickets.items())
    core.handle(Hello("c", SessionKind.CLIENT, queued=back), 0.5)
    assert drain(core, lease, "d") == ["a1", "b1", "b2"]


def test_a_restarted_limiter_serves_each_tenant_in_its_old_order() -> None:
    core = make_core(1, epoch=9, follows=True, **FAIR)
    core.handle(Hello("x", SessionKind.EXECUTOR, held=(HeldLease(LeaseId(5, 1), "code", "gone"),)), 0.0)
    old = [("b1", 4), ("a2", 3), ("a1", 2)]
    queued = tuple(Acquire("c", name, tenant=name[0], ticket=Ticket(5, seq)) for name, seq in old)
    core.handle(Hello("c", SessionKind.CLIENT, queued=queued), 0.0)
    assert granted(core.handle(Tick(), 1.0)) == []
    assert drain(core, LeaseId(5, 1), "x") == ["a1", "b1", "a2"]
