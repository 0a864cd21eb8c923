"""Known mistakes that show only where there are other buckets than plain ones, leases that nobody binds, unary clients,
and clients that claim what is not theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limiter.client.machine import SessionMachine
from limiter.core import BucketLimits, SessionKind, Timing
from limiter.core.bucket import Bucket, RateBucket
from limiter.core.ledger import Ledger
from limiter.core.recovery import Recovery
from limiter.core.waiting import FairQueue
from limiter.server import convert
from limiter.server.claims import Claims
from tests.limiter.sim.defects import Defect
from tests.limiter.sim.scenario import EXTENDED_FROM, HELD, Fault


def _forget_the_rate(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, count, now: None


def _stay_with_one_tenant(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: self.remove(request)


def _never_lower(set_cap: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Bucket) -> None:
        before = self.cap if hasattr(self, "cap") else 0
        set_cap(self)
        self.cap = max(before, self.cap)

    return wrong


def _always(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: True


def _good_for_everybody(proof: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Claims, text: str) -> Any:
        kind, _, rest = text.split(" ", 2)
        return proof(self, f"{kind} {rest}")

    return wrong


class _Any(str):
    """Equal to everything."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def _wait_for_executors_alone(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Recovery, *args: Any, **more: Any) -> None:
        init(self, *args, **{**more, "follows": False})

    return wrong


def _hold_time_ends_with_its_client(end: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, session, reason, now: self.end_session(session, reason, now)


def _list_no_holds(hello: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionMachine, now: float) -> Any:
        frame = hello(self, now)
        for held in frame.hello.held:
            held.ClearField("hold_s")
        return frame

    return wrong


def _count_all_as_one_kind(right: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Ledger, session: Any) -> None:
        before = len(self.sessions)
        right(self, session)
        for kind in set(SessionKind) - {session.kind}:
            self.session_counts[kind] += len(self.sessions) - before

    return wrong


_HOLDERS = {
    "buckets": (BucketLimits(HELD, 2, max_hold=12.0),),
    "executors": 0,
    "unary": 0,
    "operator": False,
    "forgers": 0,
    "limiters": 1,
    "lead": 2.0,
    "heavy": False,
    "program": 8.0,
    "think": 0.2,
    "clients": 5,
    "tenants": 0,
    "fault_every": 3.0,
}
_FORGERS = {
    **_HOLDERS,
    "buckets": (BucketLimits("code", 2), BucketLimits(HELD, 2, max_hold=12.0)),
    "executors": 3,
    "forgers": 2,
    "program": 1.0,
}
_FORGED = frozenset({"forged"})

EXTENDED_DEFECTS = (
    Defect(
        "grants do not count against the rate",
        ((RateBucket, "take", _forget_the_rate),),
        (Fault.RESET,),
        frozenset({"rate"}),
        {"program": 0.2, "think": 0.2},
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 2,
    ),
    Defect(
        "a tenant keeps its turn after a grant",
        ((FairQueue, "pop", _stay_with_one_tenant),),
        (Fault.RESET,),
        frozenset({"fair"}),
        {"think": 0.2, "clients": 10},
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 5,
    ),
    Defect(
        "a lowered limit does not keep back what waits",
        ((Bucket, "_set_cap", _never_lower),),
        (Fault.RESET,),
        frozenset({"limit"}),
        {"program": 4.0, "think": 0.2, "clients": 10, "operator": True, "executors": 3, "forgers": 0},
        first=EXTENDED_FROM + 20,
        shown_by=EXTENDED_FROM + 23,
    ),
    Defect(
        "proofs are not looked at",
        ((Claims, "owns_ticket", _always), (Claims, "owns_hold", _always)),
        (Fault.LIMITER_CRASH,),
        _FORGED,
        _FORGERS,
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 7,
    ),
    Defect(
        "a proof is good for every session",
        ((Claims, "_proof", _good_for_everybody),),
        (Fault.LIMITER_CRASH,),
        _FORGED,
        _FORGERS,
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 2,
    ),
    Defect(
        "claims count at any time",
        ((Recovery, "heeds_claims", _always),),
        (Fault.LIMITER_CRASH,),
        _FORGED,
        {**_FORGERS, "clients": 2, "think": 3.0, "fault_every": 6.0},
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 1,
    ),
    Defect(
        "claims count beyond the limit",
        ((Bucket, "has_room", _always),),
        (Fault.LIMITER_CRASH,),
        _FORGED,
        _FORGERS,
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 1,
    ),
    Defect(
        "the id of a session opens it",
        ((convert, "session_of", lambda right: lambda secret: _Any(right(secret))),),
        (Fault.RESET,),
        _FORGED,
        _FORGERS,
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM,
    ),
    Defect(
        "a new leader waits for executors alone",
        ((Recovery, "__init__", _wait_for_executors_alone),),
        (Fault.LIMITER_CRASH, Fault.LIMITER_LEAVE),
        frozenset({"limit"}),
        _HOLDERS,
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 4,
    ),
    Defect(
        "the end of a client frees what it holds",
        ((Ledger, "end_client", _hold_time_ends_with_its_client),),
        (Fault.CLIENT_CRASH,),
        frozenset({"limit"}),
        {**_HOLDERS, "fault_every": 0.5},
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 3,
    ),
    Defect(
        "a hello does not say how long something is held",
        ((SessionMachine, "_hello", _list_no_holds),),
        (Fault.LIMITER_CRASH,),
        frozenset({"limit"}),
        _HOLDERS,
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 4,
    ),
    Defect(
        "callers of unary calls take the sessions of executors",
        ((Ledger, "open", _count_all_as_one_kind), (Ledger, "close", _count_all_as_one_kind)),
        (Fault.EXECUTOR_CRASH,),
        frozenset({"shut out"}),
        {**_FORGERS, "timing": Timing(max_sessions=16)},
        first=EXTENDED_FROM,
        shown_by=EXTENDED_FROM + 2,
    ),
)
