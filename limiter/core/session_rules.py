"""Rules for sessions: how one opens, resumes, falls silent and ends; and when a new leader may grant."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from limiter.core.effects import HeartbeatAcked, Refused, Revoked, RosterChanged, SessionEnded, Unread, Welcomed
from limiter.core.events import (
    Acquire,
    Disconnect,
    Goodbye,
    Heartbeat,
    HeldLease,
    Hello,
    Reading,
    ReadOn,
    Returning,
    RosterFailed,
    RosterKept,
)
from limiter.core.ids import LeaseId, Ticket
from limiter.core.lease import LeaseEntry, Request, Session
from limiter.core.ledger import Ledger
from limiter.core.limits import Timing
from limiter.core.reasons import UNBOUND, LeaseState, ReleaseOutcome, SessionKind
from limiter.core.rules import RequestRules

# A hello: makes what the limiter believes about a session agree with what the session says.
#
# Of what this limiter gave the session, what it lists is kept, what it omits is freed: a grant lost with a connection
# is found here, and so is a lease whose release was lost. Requests come back to the places that they have here. What an
# earlier limiter gave counts while clients and executors are expected: leases of executors that it had let in, and
# tickets and held leases that it provably gave to the session, the latter within the limit.
#
# A long hello is read in steps, with other events between them. Until the step that welcomes the session nothing is
# granted to it, no heartbeat of one that is new here counts, and a recovery that waits for it goes on.

SLICE = 500
"""Looks at leases and requests of a hello in one step, some 2 ms; each is looked at twice or three times."""

_Item = TypeVar("_Item")


class _Reconciliation:
    """One hello on its way into the books."""

    def __init__(self, ledger: Ledger, requests: RequestRules, session: Session, hello: Hello, now: float) -> None:
        """`now`: when it came, and so when what it says was true."""
        self._ledger = ledger
        self._requests = requests
        self._session = session
        self._hello = hello
        self._now = now
        self._count = 0
        self._returned = False
        """True if its requests are in their places."""
        self._listed: set[LeaseId] = set()
        self._wanted: dict[str, Acquire] = {}
        self._places: dict[str, Ticket] = {}
        """Tickets of requests whose grants were lost."""
        self._unknown: list[HeldLease] = []
        self._untold: list[Request] = []
        """Requests whose place in the queue was lost on the way to the client."""

    def steps(self) -> Iterator[None]:
        """Each does a slice of the work; at its end everything is in its place, but nothing is granted."""
        ledger, session, hello = self._ledger, self._session, self._hello
        yield from self._each(hello.held, lambda held: self._listed.add(held.lease))
        yield from self._each(hello.queued, self._want)
        yield from self._each(list(session.leases.values()), self._free_if_omitted)
        yield from self._each(hello.held, self._hold)
        yield from self._each([each for each in session.requests.values() if each.waiting], self._drop_if_omitted)
        if session.kind is SessionKind.EXECUTOR and not ledger.roster.admits(session.session_id):
            ledger.effects.append(Refused(session.session_id, "it was given up while its hello was read", 1.0))
            ledger.end_session(session, "its programs have had to end", self._now)
            return
        for request in session.requests.values():
            if request.waiting:
                ledger.put_back(request)
        session.welcomed = self._returned = True
        ledger.effects.append(Welcomed(session.session_id, tuple(self._unknown[:SLICE])))
        if session.kind is SessionKind.EXECUTOR:
            ledger.recovery.returned(session.session_id)
        yield from self._each(self._unknown[SLICE:], self._tell_unknown)
        yield from self._each(self._untold, self._tell_place)
        new = list(self._wanted.values())
        slices = list[list[Acquire]]()
        for start in range(0, len(new), SLICE):
            slices.append(sorted(new[start : start + SLICE], key=_ticket_of))
            if start:
                yield
        yield from self._each(heapq.merge(*slices, key=_ticket_of), self._take_in)

    def _each(self, items: Iterable[_Item], visit: Callable[[_Item], object]) -> Iterator[None]:
        for item in items:
            visit(item)
            self._count += 1
            if self._count % SLICE == 0:
                if not self._returned and self._count == SLICE:
                    self._ledger.park(self._session)
                yield

    def _want(self, acquire: Acquire) -> None:
        self._wanted[acquire.request_id] = acquire

    def _free_if_omitted(self, lease: LeaseEntry) -> None:
        if lease.lease_id in self._listed or lease.lease_id not in self._session.leases:
            return
        request = lease.request
        lost = request is not None and request.session is self._session and lease.state in UNBOUND
        if lost and request is not None and request.request_id in self._wanted:
            self._places[request.request_id] = request.ticket
            lease.bucket.revoked_total += 1
        else:
            lease.bucket.released_total += 1
            lease.bucket.outcomes[ReleaseOutcome.UNUSED if lost else ReleaseOutcome.OK] += 1
        self._ledger.free(lease)

    def _hold(self, held: HeldLease) -> None:
        if not _holds(self._ledger, self._session, held, self._now):
            self._unknown.append(held)

    def _drop_if_omitted(self, request: Request) -> None:
        if not request.waiting:
            return  # its time has come since the first step: it is asked for anew
        acquire = self._wanted.pop(request.request_id, None)
        if acquire is None:
            request.bucket.cancelled_total += 1
            self._ledger.drop(request)
        elif acquire.ticket is None:
            self._untold.append(request)

    def _tell_unknown(self, held: HeldLease) -> None:
        reason = "the limiter does not know it any more"
        told = Revoked(self._session.session_id, held.lease, held.bucket, held.client_session_id, reason)
        self._ledger.effects.append(told)

    def _tell_place(self, request: Request) -> None:
        if request.waiting:
            self._ledger.repeat(request, self._now)

    def _take_in(self, acquire: Acquire) -> None:
        if acquire.request_id not in self._session.requests:
            place = self._places.get(acquire.request_id)
            self._requests.take_back(acquire, self._session, self._now, place)


def _ticket_of(acquire: Acquire) -> Ticket:
    """Ticket to sort by; requests that have none come last."""
    return acquire.ticket or _LAST


_LAST = Ticket(1 << 64, 0)


def _holds(ledger: Ledger, session: Session, held: HeldLease, now: float) -> bool:
    lease = ledger.leases.get(held.lease)
    if lease is not None:
        by_client = session.kind is SessionKind.CLIENT and lease.client_session_id == session.session_id
        return lease.holder is session or by_client
    bucket = ledger.buckets.get(held.bucket)
    if bucket is None or held.lease.epoch >= ledger.epoch:
        return False
    lease = LeaseEntry(held.lease, bucket, held.tokens, held.client_session_id, session, None, now, LeaseState.BOUND)
    if session.kind is not SessionKind.EXECUTOR:
        hold = min(held.hold, bucket.limits.max_hold)
        mine = hold > 0 and held.client_session_id == session.session_id
        if not (mine and bucket.has_room(held.tokens) and ledger.recovery.heeds_claims(now)):
            return False
        lease.state = LeaseState.HELD
        ledger.deadlines.set(lease, now + hold)
    elif not ledger.recovery.heeds_executor(session.session_id):
        return False
    ledger.adopt(lease)
    return True


class SessionRules:
    """Handles `Hello`, `RosterKept`, `Disconnect`, `Goodbye`, `Heartbeat`, the ends of sessions and of the recovery."""

    def __init__(self, ledger: Ledger, requests: RequestRules, timing: Timing) -> None:
        self._ledger = ledger
        self._requests = requests
        self._timing = timing
        self._unread: dict[str, Iterator[None]] = {}
        """Remaining steps of hellos that are being read, by session."""

    def hello(self, event: Hello, now: float) -> None:
        session = self._ledger.sessions.get(event.session_id)
        if session is not None and 0 < event.connection < session.connection:
            self._ledger.effects.append(_late(event))
        elif event.kind is SessionKind.EXECUTOR and not self._ledger.roster.admits(event.session_id):
            self._join(event, now)
        else:
            self._open(event, now)

    def _join(self, event: Hello, now: float) -> None:
        """An executor is welcomed once the next leader would know of it, or would know that it does not know."""
        ledger = self._ledger
        if event.session_id in ledger.sessions:
            ledger.effects.append(_other_kind(event, ledger.sessions[event.session_id]))
        elif ledger.recovery.unknown:
            ledger.roster.admit(event)
            self._open(event, now)
        elif ledger.roster.join(event):
            self._tell_roster()

    def roster_kept(self, event: RosterKept, now: float) -> None:
        """All that waited come in at once, and before anything is granted: their tickets decide, not their hellos."""
        ready = self._ledger.roster.kept_at(event.version)
        for hello in ready:
            self._open(hello, now, pump=False)
        if ready:
            for bucket in self._ledger.buckets.values():
                self._ledger.pump(bucket, now)

    def roster_failed(self, event: RosterFailed, now: float) -> None:
        for session_id in self._ledger.roster.joining:
            self._ledger.effects.append(Refused(session_id, event.message, 1.0))
            self._leave(session_id)

    def _leave(self, session_id: str) -> None:
        """An executor runs nothing, and never will under this session."""
        if self._ledger.roster.leave(session_id):
            self._tell_roster()

    def _tell_roster(self) -> None:
        roster = self._ledger.roster
        if self._ledger.recovery.unknown:
            return  # at its end
        self._ledger.effects.append(RosterChanged(roster.members, roster.version))

    def _open(self, event: Hello, now: float, *, pump: bool = True) -> None:
        """`pump`: what can be granted then is granted."""
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
        if session is None:
            if ledger.session_counts[event.kind] >= self._timing.max_sessions:
                message = f"{self._timing.max_sessions} sessions of kind {event.kind} are open, which is all that may"
                ledger.effects.append(Refused(event.session_id, message, 1.0))
                self._leave(event.session_id)
                return
            session = Session(event.session_id, event.kind, event.name, now)
            ledger.open(session)
        elif session.kind is not event.kind:
            ledger.effects.append(_other_kind(event, session))
            return
        session.connected, session.gone_at = True, float("inf")
        session.connection = max(session.connection, event.connection)
        session.name, session.last_heard = event.name, now
        if session.kind is SessionKind.EXECUTOR:
            ledger.deadlines.set(session, now + self._timing.executor_silence)
        else:
            ledger.deadlines.clear(session)
        self._stop_reading(session.session_id)
        self._unread[session.session_id] = _Reconciliation(ledger, self._requests, session, event, now).steps()
        ledger.recovery.reading += 1
        self._read_on(session.session_id, now, pump=pump)

    def read_on(self, event: ReadOn, now: float) -> None:
        if event.session_id in self._unread:
            self._read_on(event.session_id, now)

    def _read_on(self, session_id: str, now: float, *, pump: bool = True) -> None:
        """The next step of a hello."""
        for _ in self._unread[session_id]:
            self._ledger.effects.append(Unread(session_id))
            return
        self._stop_reading(session_id)
        self.recover(now)
        for bucket in self._ledger.buckets.values() if pump else ():
            self._ledger.pump(bucket, now)

    def _stop_reading(self, session_id: str) -> None:
        """Its hello has been read, or counts no more: its stream has ended, or another one has come."""
        if self._unread.pop(session_id, None) is not None:
            self._ledger.recovery.reading -= 1

    def recover(self, now: float) -> None:
        """Grants again once nothing of an earlier leader can be running uncounted."""
        ledger, recovery = self._ledger, self._ledger.recovery
        unknown = recovery.unknown
        if recovery.over(now):
            ledger.deadlines.clear(recovery)
            if unknown and ledger.roster.kept:
                self._tell_roster()
            for session_id in recovery.missing:
                self._leave(session_id)
            recovery.missing.clear()
            for bucket in ledger.buckets.values():
                ledger.pump(bucket, now)
        elif recovery.active:
            ledger.deadlines.set(recovery, recovery.ends_at())

    def disconnect(self, event: Disconnect, now: float) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
        self._stop_reading(event.session_id)
        if session is None and ledger.roster.joins(event.session_id):
            self._leave(event.session_id)
        if session is None or not session.connected:
            return
        session.connected, session.gone_at = False, now
        ledger.park(session)
        when = now + self._timing.grace
        if session.kind is SessionKind.EXECUTOR:
            when = min(when, session.last_heard + self._timing.executor_silence)
        ledger.deadlines.set(session, when)
        for bucket in ledger.buckets.values():
            ledger.pump(bucket, now)

    def returning(self, event: Returning, now: float) -> None:
        """Its programs may go on for their time from now. Those of a session that is not known yet are not counted, so
        the recovery goes on as long."""
        session = self._ledger.sessions.get(event.session_id)
        if session is not None and session.welcomed and session.kind is SessionKind.EXECUTOR:
            session.last_heard = now
            self._ledger.effects.append(HeartbeatAcked(event.session_id, event.number))
        elif self._ledger.recovery.wait_again(event.session_id, now + self._timing.executor_silence):
            self.recover(now)
            self._ledger.effects.append(HeartbeatAcked(event.session_id, event.number))

    def reading(self, event: Reading, now: float) -> None:
        self._ledger.recovery.reading += event.change
        self.recover(now)

    def goodbye(self, event: Goodbye, now: float) -> None:
        session = self._ledger.sessions.get(event.session_id)
        if session is not None and session.kind is SessionKind.EXECUTOR and not session.leases:
            self._end(session, "it has ended", now)

    def heartbeat(self, event: Heartbeat, now: float) -> None:
        session = self._ledger.sessions.get(event.session_id)
        if session is not None and session.welcomed:
            session.last_heard = now
            self._ledger.effects.append(HeartbeatAcked(event.session_id, event.number))

    def expire(self, session: Session, now: float) -> None:
        """Ends a client that has been gone for the grace, and an executor that has been silent for its time."""
        ledger, timing = self._ledger, self._timing
        if session.kind is not SessionKind.EXECUTOR:
            ledger.end_client(session, "its client has gone", now)
            return
        silent_at = session.last_heard + timing.executor_silence
        if silent_at <= now:
            self._end(session, "it was silent for too long", now)
            return
        if session.gone_at + timing.grace <= now:
            ledger.drop_unbound(session, "the executor that asked for it has gone", now)
        ledger.deadlines.set(session, silent_at)

    def _end(self, session: Session, reason: str, now: float) -> None:
        """Ends an executor, which the next leader need not wait for."""
        self._stop_reading(session.session_id)
        self._ledger.effects.append(SessionEnded(session.session_id, reason))
        self._ledger.end_session(session, reason, now)
        self._leave(session.session_id)


def _late(event: Hello) -> Refused:
    """Refusal of a late hello: what it omits may be in use by now, so it must not be believed."""
    return Refused(event.session_id, "a later connection of this session has said hello already")


def _other_kind(event: Hello, session: Session) -> Refused:
    message = f"session_id is {event.session_id!r}, which is a session of another kind ({session.kind})"
    return Refused(event.session_id, message)
