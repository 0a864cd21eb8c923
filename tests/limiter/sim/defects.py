"""Known mistakes, put into the production code for as long as a block lasts. The simulation has to find each of them.

Each names the faults and the circumstances under which it shows quickly, what is violated then, and within how many
seeds. Most were made once, here or in other limiters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from limiter.client.executor import ExecutorSession
from limiter.client.machine import SessionMachine
from limiter.core import LimiterCore, SessionKind
from limiter.core.effects import BindAnswered, Released, Welcomed
from limiter.core.events import LeadUntil
from limiter.core.limits import Timing
from limiter.core.reasons import BindStatus, LeaseState
from limiter.core.recovery import Recovery, Roster
from limiter.core.rules import LeaseRules, RequestRules
from limiter.core.session_rules import SessionRules
from limiter.core.waiting import WaitQueue
from limiter.leadership.election import Election
from tests.limiter.sim.scenario import Fault, Scenario, draw

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes the wrong method from the right one."""


@dataclass(frozen=True)
class Defect:
    """One mistake."""

    name: str
    patches: tuple[tuple[Any, str, Wrap], ...]
    """Class or module, method, and what becomes of it."""
    faults: tuple[Fault, ...]
    finds: frozenset[str]
    """Kinds of violations, any of which shows it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the scenario that are set."""
    seeds: int = 10
    """It shows in one of so many."""
    first: int = 0
    """The first of them."""
    shown_by: int = field(kw_only=True)
    """One of them that showed it when this was written, in little time: it is looked at before the others."""

    def tries(self) -> Iterator[int]:
        """The seeds, in the order in which to look."""
        yield self.shown_by
        yield from (seed for seed in range(self.first, self.first + self.seeds) if seed != self.shown_by)

    def scenario(self, seed: int) -> Scenario:
        """The scenario in which to look for it."""
        return replace(draw(seed, self.faults), **{"faults": self.faults, "fault_every": 0.5, **self.changes})

    @contextlib.contextmanager
    def put_in(self) -> Iterator[None]:
        """The production code is wrong inside of the block."""
        with contextlib.ExitStack() as stack:
            for owner, name, wrap in self.patches:
                right = owner.__dict__[name]
                plain: Any = right.fget if isinstance(right, property) else right
                wrong = wrap(plain)
                setattr(owner, name, property(wrong) if isinstance(right, property) else wrong)
                stack.callback(setattr, owner, name, right)
            yield


def _nothing(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: None


def _always(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: True


def _no_wait(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Recovery, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        self.active = False

    return wrong


def _learn_too_short(init: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Recovery, roster: Any, timing: Timing, now: float, **more: Any) -> None:
        init(self, roster, timing, now, **more)
        self._until = now + timing.executor_silence / 8

    return wrong


def _end_executor_at_once(disconnect: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionRules, event: Any, now: float) -> None:
        disconnect(self, event, now)
        session = self._ledger.sessions.get(event.session_id)
        if session is not None and session.kind is SessionKind.EXECUTOR:
            self._ledger.end_session(session, "it has gone", now)

    return wrong


def _free_bound_of_client(disconnect: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionRules, event: Any, now: float) -> None:
        disconnect(self, event, now)
        for lease in list(self._ledger.leases.values()):
            if lease.client_session_id == event.session_id and lease.state is LeaseState.BOUND:
                self._ledger.free(lease)
                self._ledger.pump(lease.bucket, now)

    return wrong


def _believe_late_hello(hello: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, event, now: hello(self, replace(event, connection=0), now)


def _never_ends(handle: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, event, now: [] if isinstance(event, LeadUntil) else handle(self, event, now)


def _welcome_last(handle: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: LimiterCore, event: Any, now: float) -> list[Any]:
        effects = handle(self, event, now)
        return sorted(effects, key=lambda effect: isinstance(effect, Welcomed))

    return wrong


def _forget_what_waits(hello: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionMachine, now: float) -> Any:
        frame = hello(self, now)
        del frame.hello.queued[:]
        return frame

    return wrong


def _forget_what_was_asked_meanwhile(welcome: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionMachine, *args: Any) -> None:
        welcome(self, *args)
        self._outbox.acquires.clear()

    return wrong


def _keep_lost_grants(hello: Callable[..., Any]) -> Callable[..., Any]:
    """As if the hello listed every lease of its session that the limiter knows."""

    def wrong(self: SessionRules, event: Any, now: float) -> None:
        session = self._ledger.sessions.get(event.session_id)
        kept = dict(session.leases) if session is not None else {}
        if session is not None:
            session.leases.clear()
        hello(self, event, now)
        if session is not None:
            session.leases.update({name: lease for name, lease in kept.items() if name in self._ledger.leases})

    return wrong


def _valid_from_answer(received: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionMachine, frame: Any, now: float) -> Any:
        for number in self._heartbeats.unacked:
            self._heartbeats.unacked[number] = now
        return received(self, frame, now)

    return wrong


def _newest_first(head: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: max(self, key=lambda request: request.ticket, default=None)


def _ignore_cancel(cancel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: RequestRules, event: Any, now: float) -> None:
        self._ledger.effects.append(Released(event.session_id, False))

    return wrong


def _release_only_when_connected(release: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SessionMachine, lease: Any, outcome: Any) -> None:
        if self.welcomed:
            release(self, lease, outcome)

    return wrong


def _bind_any_epoch(bind: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: LeaseRules, event: Any, now: float) -> None:
        bind(self, event, now)
        answer = self._ledger.effects[-1]
        if isinstance(answer, BindAnswered) and answer.status is BindStatus.WRONG_EPOCH:
            self._ledger.effects[-1] = replace(answer, status=BindStatus.BOUND, tokens=1)

    return wrong


def _times(factor: float) -> Wrap:
    return lambda right: lambda self: right(self) * factor


def _only_look_again(_: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Election, now: float, why: str = "") -> None:
        self._look_first = True

    return wrong


def _take_over_too_soon(follow: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Election, now: float, epoch_from: int) -> Any:
        changed, self._changed_at = self._changed_at, self._changed_at - 0.9 * self.duration
        try:
            return follow(self, now, epoch_from)
        finally:
            self._changed_at = changed

    return wrong


_LIMIT = frozenset({"limit"})
_WAITS = frozenset({"late", "stuck", "leak", "lost", "phantom"})
_RESTARTS = {"program": 4.0, "think": 0.2, "clients": 10}
_FADES = {**_RESTARTS, "limiters": 1, "lead": 6.0, "fault_every": 3.0, "heavy": False}
_CUTS = {**_RESTARTS, "cut": 4.0, "fault_every": 1.5}
_SHORT = Timing(executor_ttl=2.0)
_RESETS = {"fault_every": 0.1, "think": 0.2, "program": 0.2}

DEFECTS = (
    Defect(
        "a new leader does not wait for the roster",
        ((Recovery, "__init__", _no_wait),),
        (Fault.LIMITER_CRASH,),
        _LIMIT,
        {**_RESTARTS, "limiters": 1},
        shown_by=1,
    ),
    Defect(
        "without a roster a new limiter waits too shortly",
        ((Recovery, "__init__", _learn_too_short),),
        (Fault.LIMITER_CRASH, Fault.PARTITION),
        _LIMIT,
        {**_RESTARTS, "limiters": 0},
        shown_by=9,
    ),
    Defect(
        "a leader that can't renew goes on",
        ((LimiterCore, "handle", _never_ends), (Election, "failed", _only_look_again)),
        (Fault.DEPOSED, Fault.RESET),
        _LIMIT,
        {**_RESTARTS, "limiters": 2, "lead": 2.0, "timing": _SHORT, "executors": 2},
        shown_by=4,
    ),
    Defect(
        "a follower takes over too soon",
        ((Election, "_follow", _take_over_too_soon),),
        (Fault.DEPOSED, Fault.RESET),
        _LIMIT,
        {**_RESTARTS, "limiters": 2, "lead": 6.0, "timing": _SHORT},
        20,
        shown_by=10,
    ),
    Defect(
        "an executor is let in before the roster is written",
        ((Roster, "admits", _always),),
        (Fault.LIMITER_CRASH, Fault.FADING),
        _LIMIT,
        {**_RESTARTS, "limiters": 1, "fault_every": 1.0, "timing": Timing(), "program": 8.0},
        shown_by=6,
    ),
    Defect(
        "an executor starts a program without looking again after the bind",
        ((ExecutorSession, "vouches", _always),),
        (Fault.FADING,),
        _LIMIT,
        {**_FADES, "timing": _SHORT, "setup": 3.0, "fault_every": 1.5},
        shown_by=9,
    ),
    Defect(
        "an executor goes on when its session has lapsed",
        ((ExecutorSession, "when_lost", _nothing),),
        (Fault.PARTITION,),
        _LIMIT,
        _CUTS,
        shown_by=2,
    ),
    Defect(
        "the limiter waits too shortly for a silent executor",
        ((Timing, "executor_silence", _times(0.5)),),
        (Fault.PARTITION, Fault.ONE_WAY),
        _LIMIT,
        _CUTS,
        shown_by=0,
    ),
    Defect(
        "validity counts from the answer to a heartbeat",
        ((SessionMachine, "received", _valid_from_answer),),
        (Fault.FADING,),
        _LIMIT,
        {**_FADES, "program": 8.0, "setup": 0.3, "timing": Timing()},
        first=10,
        shown_by=15,
    ),
    Defect(
        "the loss of an executor's connection frees its leases",
        ((SessionRules, "disconnect", _end_executor_at_once),),
        (Fault.RESET,),
        _LIMIT,
        _RESTARTS,
        shown_by=1,
    ),
    Defect(
        "the loss of a client's connection frees leases that are bound",
        ((SessionRules, "disconnect", _free_bound_of_client),),
        (Fault.RESET,),
        _LIMIT,
        _RESTARTS,
        shown_by=1,
    ),
    Defect(
        "a hello that comes late is believed",
        ((SessionRules, "hello", _believe_late_hello),),
        (Fault.FADING, Fault.RESET),
        _LIMIT,
        {**_FADES, "timing": Timing(), "fault_every": 1.5},
        30,
        shown_by=22,
    ),
    Defect(
        "a bind does not look at the epoch",
        ((LeaseRules, "bind", _bind_any_epoch),),
        (Fault.LIMITER_CRASH, Fault.SLOW_WAY),
        _LIMIT,
        {**_RESTARTS, "limiters": 1},
        shown_by=5,
    ),
    Defect(
        "a hello that omits a lease does not free it",
        ((SessionRules, "hello", _keep_lost_grants),),
        (Fault.RESET,),
        _WAITS,
        _RESETS,
        shown_by=9,
    ),
    Defect(
        "a hello does not list what waits",
        ((SessionMachine, "_hello", _forget_what_waits),),
        (Fault.RESET,),
        _WAITS,
        _RESETS,
        shown_by=9,
    ),
    Defect(
        "what was asked for during the handshake is not sent after it",
        ((SessionMachine, "_welcome", _forget_what_was_asked_meanwhile),),
        (Fault.RESET,),
        _WAITS,
        _RESETS,
        shown_by=0,
    ),
    Defect(
        "a welcome comes after the grants",
        ((LimiterCore, "handle", _welcome_last),),
        (Fault.RESET,),
        _WAITS,
        _RESETS,
        shown_by=8,
    ),
    Defect(
        "a release is lost when there is no connection",
        ((SessionMachine, "release", _release_only_when_connected),),
        (Fault.RESET,),
        _WAITS,
        _RESETS,
        shown_by=9,
    ),
    Defect(
        "a cancel is ignored",
        ((RequestRules, "cancel", _ignore_cancel),),
        (Fault.RESET,),
        frozenset({"ghost"}),
        {"program": 4.0},
        shown_by=9,
    ),
    Defect(
        "the newest request is granted first",
        ((WaitQueue, "head", _newest_first),),
        (Fault.RESET,),
        frozenset({"order"}),
        shown_by=9,
    ),
)
