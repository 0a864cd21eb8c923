"""Cores with sessions already open, and what to read from their effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from limiter.core import BucketLimits, LeaseId, LimiterCore, Member, SessionKind, Timing
from limiter.core.effects import (
    Effect,
    Granted,
    Welcomed,
)
from limiter.core.events import (
    Acquire,
    Hello,
)

E = TypeVar("E", bound=Effect)


def make_core(
    limit: int = 1,
    *,
    epoch: int = 5,
    timing: Timing | None = None,
    max_queued: int = 100,
    follows: bool = False,
    **more: Any,
) -> LimiterCore:
    """A core with a client `c`, a client `d` and an executor `x`, all connected at time 0. `follows`: there was a
    limiter before, which had let `x` in, and `x` has yet to come back. `more` are further fields of the bucket."""
    limits = replace(BucketLimits("code", limit, max_queued, 10, 5.0), **more)
    roster = (Member("x", "executor"),) if follows else ()
    core = LimiterCore(epoch, [limits], now=0.0, timing=timing, roster=roster, follows=follows)
    core.handle(Hello("c", SessionKind.CLIENT, "client"), 0.0)
    core.handle(Hello("d", SessionKind.CLIENT, "other"), 0.0)
    if not follows:
        core.handle(Hello("x", SessionKind.EXECUTOR, "executor"), 0.0)
    return core


def only(kind: type[E], effects: list[Effect]) -> E:
    """The one effect of that kind."""
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


def granted(effects: list[Effect]) -> list[str]:
    return [effect.request_id for effect in effects if isinstance(effect, Granted)]


def unknown(effects: list[Effect]) -> list[LeaseId]:
    """Leases that the one welcome reports as not held."""
    return [held.lease for held in only(Welcomed, effects).unknown]


def acquire(core: LimiterCore, session: str, request: str, now: float = 0.0) -> list[Effect]:
    return core.handle(Acquire(session, request), now)


def lease_of(effects: list[Effect]) -> LeaseId:
    return only(Granted, effects).lease


def listed(core: LimiterCore) -> list[str]:
    """Requests that wait, in the order in which they will be granted, without those of lost streams."""
    queue, order = core._ledger.buckets["code"].queue, []
    while (head := queue.head()) is not None:
        queue.pop(head)
        order.append(head)
    for request in order:
        queue.add(request)
    return [request.request_id for request in order]
