"""Rules for sessions: how one opens, resumes, falls silent and ends; and when a new leader may grant."""

from __future__ import annotations

from limiter.core.bucket import Bucket
from limiter.core.effects import HeartbeatAcked, Refused, RosterChanged, SessionEnded, Welcomed
from limiter.core.events import (
    Acquire,
    Disconnect,
    Goodbye,
    Heartbeat,
    HeldLease,
    Hello,
    Reading,
    Returning,
    RosterFailed,
    RosterKept,
)
from limiter.core.ids import LeaseId, Ticket
from limiter.core.lease import Lease, Session
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


def reconcile_leases(
    ledger: Ledger, session: Session, hello: Hello, now: float
) -> tuple[tuple[LeaseId, ...], dict[str, Ticket]]:
    """Frees what the hello omits, and adopts what has run since an earlier epoch. Returns what is unknown, and the
    places of requests whose grants were lost, by their ids. Nothing is granted here."""
    places: dict[str, Ticket] = {}
    listed = {held.lease for held in hello.held}
    wanted = {acquire.request_id for acquire in hello.queued}
    for lease in list(session.leases.values()):
        if lease.lease_id in listed:
            continue
        request = lease.request
        lost = request is not None and request.session is session and lease.state in UNBOUND
        if lost and request is not None and request.request_id in wanted:
            places[request.request_id] = request.ticket
            lease.bucket.revoked_total += 1
        else:
            lease.bucket.released_total += 1
            lease.bucket.outcomes[ReleaseOutcome.UNUSED if lost else ReleaseOutcome.OK] += 1
        ledger.free(lease)
    return tuple(held.lease for held in hello.held if not _holds(ledger, session, held, now)), places


def _holds(ledger: Ledger, session: Session, held: HeldLease, now: float) -> bool:
    lease = ledger.leases.get(held.lease)
    if lease is not None:
        by_client = session.kind is SessionKind.CLIENT and lease.client_session_id == session.session_id
        return lease.holder is session or by_client
    bucket = ledger.buckets.get(held.bucket)
    if bucket is None or held.lease.epoch >= ledger.epoch:
        return False
    lease = Lease(held.lease, bucket, held.tokens, held.client_session_id, session, None, now, LeaseState.BOUND)
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


def reconcile_requests(
    ledger: Ledger, session: Session, hello: Hello, now: float
) -> tuple[list[Acquire], list[Bucket]]:
    """Puts listed requests back in their places and drops waiting ones that the hello omits.

    Returns the listed ones that are new to this limiter, in ticket order, and the buckets to pump.
    """
    listed = {acquire.request_id: acquire for acquire in hello.queued}
    touched: dict[Bucket, None] = dict.fromkeys(ledger.buckets.values())
    for request in [each for each in session.requests.values() if each.waiting]:
        acquire = listed.pop(request.request_id, None)
        if acquire is None or acquire.attempt < request.attempt:
            request.bucket.cancelled_total += 1
            ledger.drop(request)
        else:
            request.attempt = acquire.attempt
            ledger.put_back(request)
            if acquire.ticket is None:
                ledger.repeat(request, now)  # where it waits was lost on the way
    known = [acquire for acquire in listed.values() if acquire.request_id not in session.requests]
    last = Ticket(ledger.epoch, ledger.last_ticket)
    known.sort(key=lambda acquire: acquire.ticket or Ticket(last.epoch + 1, 0))
    return known, list(touched)


class SessionRules:
    """Handles `Hello`, `RosterKept`, `Disconnect`, `Goodbye`, `Heartbeat`, the ends of sessions and of the recovery."""

    def __init__(self, ledger: Ledger, requests: RequestRules, timing: Timing) -> None:
        self._ledger = ledger
        self._requests = requests
        self._timing = timing

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
        resumed = session is not None
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
        unknown, places = reconcile_leases(ledger, session, event, now)
        ledger.effects.append(Welcomed(session.session_id, resumed, unknown))
        known, touched = reconcile_requests(ledger, session, event, now)
        for acquire in known:
            self._requests.take_back(acquire, session, now, places.get(acquire.request_id))
        if session.kind is SessionKind.EXECUTOR:
            ledger.recovery.returned(session.session_id)
            self.recover(now)
        for bucket in touched if pump else ():
            ledger.pump(bucket, now)

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
        if session is not None and session.kind is SessionKind.EXECUTOR:
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
        if session is not None:
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
        self._ledger.effects.append(SessionEnded(session.session_id, reason))
        self._ledger.end_session(session, reason, now)
        self._leave(session.session_id)


def _late(event: Hello) -> Refused:
    """What it omits may be in use by now: it must not be believed."""
    return Refused(event.session_id, "a later connection of this session has said hello already")


def _other_kind(event: Hello, session: Session) -> Refused:
    message = f"session_id is {event.session_id!r}, which is a session of another kind ({session.kind})"
    return Refused(event.session_id, message)
