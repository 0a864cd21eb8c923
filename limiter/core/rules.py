"""Rules for asking and for leases: who gets a place in a queue, what a repeat means, how a request is withdrawn, and
who may bind, release and revoke a lease.
"""

from __future__ import annotations

from limiter.core.bucket import Bucket
from limiter.core.effects import BindAnswered, Rejected, Released, RevokeAnswered, Revoked
from limiter.core.events import Acquire, Bind, Cancel, Release, Revoke
from limiter.core.ids import Ticket
from limiter.core.lease import LeaseEntry, Request, Session
from limiter.core.ledger import Ledger
from limiter.core.limits import Timing
from limiter.core.reasons import UNBOUND, BindStatus, LeaseState, RejectReason, SessionKind


class RequestRules:
    """Handles `Acquire` and `Cancel`."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        self._ledger = ledger
        self._timing = timing

    def acquire(self, event: Acquire, now: float) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
        if session is None:
            session = self._unary_session(event, now)
            if session is None:
                return
        elif not session.connected:
            self._reject(event, RejectReason.INVALID, f"session {event.session_id} is not connected; say hello first")
            return
        elif session.requests and (known := session.requests.get(event.request_id)) is not None:
            ledger.repeat(known, now)
            return
        problem = self._problem(event, session, now)
        if problem is not None:
            ledger.effects.append(problem)
            if session.kind is SessionKind.UNARY and not session.requests:
                ledger.close(session)
            return
        if event.ticket is None:
            bucket = ledger.buckets[event.bucket]
            ledger.admit(_request(session, event, bucket, _next_ticket(ledger), now), now, event.queue_timeout)
        else:
            self.take_back(event, session, now)
            ledger.pump(ledger.buckets[event.bucket], now)

    def take_back(self, event: Acquire, session: Session, now: float, place: Ticket | None = None) -> None:
        """Takes in a request that had a place, or says why not: in `place`, which this limiter remembers, or in that of
        its ticket while those count. The caller pumps."""
        ledger = self._ledger
        problem = self._problem(event, session, now)
        if problem is not None:
            ledger.effects.append(problem)
            return
        ticket = place or self._claim(event.ticket, now) or _next_ticket(ledger)
        request = _request(session, event, ledger.buckets[event.bucket], ticket, now)
        ledger.readmit(request, now + event.queue_timeout)
        if ticket != event.ticket:
            ledger.repeat(request, now)

    def _claim(self, ticket: Ticket | None, now: float) -> Ticket | None:
        """The ticket, if it gives a place."""
        ledger = self._ledger
        if ticket is None or not ledger.recovery.heeds_claims(now) or ticket in ledger.claimed:
            return None
        if not (0, 0) < ticket <= (ledger.epoch, ledger.last_ticket):
            return None  # no limiter so far has issued it
        ledger.claimed.add(ticket)
        return ticket

    def _unary_session(self, event: Acquire, now: float) -> Session | None:
        """A session for a unary call, or None after a rejection."""
        ledger = self._ledger
        if not event.unary:
            self._reject(event, RejectReason.INVALID, f"session {event.session_id} is not known; say hello first")
            return None
        if ledger.session_counts[SessionKind.UNARY] >= self._timing.max_sessions:
            message = (
                f"{self._timing.max_sessions} callers of unary calls wait or hold something, which is all that may"
            )
            self._reject(event, RejectReason.QUEUE_FULL, message, 1.0)
            return None
        session = Session(event.session_id, SessionKind.UNARY, event.session_id, now)
        ledger.open(session)
        return session

    def _problem(self, event: Acquire, session: Session, now: float) -> Rejected | None:
        """Why the request can't be taken in, if it can't."""
        ledger = self._ledger
        bucket = ledger.buckets.get(event.bucket)
        reason, after = RejectReason.INVALID, 0.0
        if bucket is None:
            reason = RejectReason.UNKNOWN_BUCKET
            message = f"bucket is {event.bucket!r}, must be one of {', '.join(sorted(ledger.buckets))}"
        elif event.hold and session.kind is SessionKind.EXECUTOR:
            message = f"hold_s is {event.hold:g}, must be 0 on an executor's session, which binds"
        elif refusal := bucket.limits.refusal(event.tokens, event.hold):
            message = refusal
        elif bucket.waiting >= bucket.limits.max_queued:
            reason, after = RejectReason.QUEUE_FULL, bucket.retry_after(now)
            message = f"{bucket.waiting} requests wait for bucket {event.bucket}, which is all that may"
        elif session.waiting.get(event.bucket, 0) >= bucket.limits.max_queued_per_client:
            reason, after = RejectReason.QUEUE_FULL, bucket.retry_after(now)
            message = f"{session.waiting[event.bucket]} requests of this client wait for bucket {event.bucket}, "
            message += "which is all that may"
        elif ledger.tombstones and (event.session_id, event.request_id) in ledger.tombstones:
            reason = RejectReason.CANCELLED
            message = f"request {event.request_id} was released or cancelled before"
        else:
            return None
        if bucket is not None:
            bucket.rejected_total += 1
        return Rejected(event.session_id, event.request_id, reason, message, after)

    def _reject(self, event: Acquire, reason: RejectReason, message: str, retry_after: float = 0.0) -> None:
        rejected = Rejected(event.session_id, event.request_id, reason, message, retry_after)
        self._ledger.effects.append(rejected)

    def cancel(self, event: Cancel, now: float) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
        request = session.requests.get(event.request_id) if session is not None else None
        released = bound = False
        if request is not None:
            if request.waiting:
                released = True
                self._withdraw(request, now)
            elif request.lease is not None and request.lease.state in UNBOUND:
                released = True
                request.bucket.released_total += 1
                ledger.free(request.lease)
                ledger.pump(request.bucket, now)
            else:
                bound = True
        if session is None or session.kind is SessionKind.UNARY:
            ledger.tombstones.bury(event.session_id, event.request_id, now)
        ledger.effects.append(Released(event.session_id, released, bound))

    def _withdraw(self, request: Request, now: float) -> None:
        """Ends a waiting request by the word of who asked; what waited behind it may fit now."""
        request.bucket.cancelled_total += 1
        session = request.session
        if session.kind is SessionKind.UNARY:
            message = f"request {request.request_id} was cancelled"
            self._ledger.effects.append(
                Rejected(session.session_id, request.request_id, RejectReason.CANCELLED, message)
            )
        self._ledger.drop(request)
        self._ledger.pump(request.bucket, now)


def _next_ticket(ledger: Ledger) -> Ticket:
    """A place behind everybody else's."""
    ledger.last_ticket += 1
    return Ticket(ledger.epoch, ledger.last_ticket)


def _request(session: Session, acquire: Acquire, bucket: Bucket, ticket: Ticket, now: float) -> Request:
    """The record of a request."""
    start_by = acquire.hold or (bucket.limits.start_by if acquire.start_by is None else acquire.start_by)
    return Request(
        session,
        acquire.request_id,
        bucket,
        acquire.tokens,
        acquire.tenant,
        start_by,
        ticket,
        now,
        acquire.hold,
    )


_GRANTED = LeaseState.GRANTED
_UNARY = SessionKind.UNARY
"""Names of their own as in `ledger`: for speed."""


class LeaseRules:
    """Handles `Release`, `Bind` and `Revoke`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def release(self, event: Release, now: float) -> None:
        ledger = self._ledger
        lease = ledger.leases.get(event.lease)
        session = ledger.sessions.get(event.session_id)
        if session is not None:
            session.last_heard = now
        released = bound = False
        if lease is not None:
            granted = lease.state is _GRANTED or lease.state is LeaseState.HELD
            if lease.holder is session and (granted or not event.unbound_only):
                released = True
                request = lease.request
                if request is not None and request.session.kind is _UNARY:
                    ledger.tombstones.bury(request.session.session_id, request.request_id, now)
                ledger.release(lease, event.outcome, now)
            else:
                bound = not granted
        ledger.effects.append(Released(event.session_id, released, bound))

    def bind(self, event: Bind, now: float) -> None:
        ledger = self._ledger
        executor = ledger.sessions.get(event.session_id)
        lease = ledger.leases.get(event.lease)
        owner = ""
        if executor is not None:
            executor.last_heard = now
        if executor is None or executor.kind is not SessionKind.EXECUTOR:
            status = BindStatus.UNKNOWN_LEASE
        elif lease is None:
            status = BindStatus.UNKNOWN_LEASE if event.lease.epoch == ledger.epoch else BindStatus.WRONG_EPOCH
        elif lease.client_session_id != event.client_session_id:
            status = BindStatus.WRONG_CLIENT
        elif lease.state in UNBOUND:
            status = BindStatus.BOUND
            ledger.bind(lease, executor, event.run_id)
        elif lease.holder is not executor:
            status, owner = BindStatus.BOUND_ELSEWHERE, lease.holder.name
        else:
            status = BindStatus.BOUND if lease.state is LeaseState.BOUND else BindStatus.UNKNOWN_LEASE
        if lease is None or status is not BindStatus.BOUND:
            ledger.effects.append(BindAnswered(event.session_id, event.lease, status, owner))
            return
        ledger.effects.append(BindAnswered(event.session_id, event.lease, status, "", lease.tokens))

    def revoke(self, event: Revoke, now: float) -> None:
        ledger = self._ledger
        lease = ledger.leases.get(event.lease)
        was = lease.state if lease is not None else None
        if lease is not None and (was is LeaseState.GRANTED or (was is LeaseState.HELD and event.force)):
            ledger.revoke(lease, event.reason)
            ledger.pump(lease.bucket, now)
        elif was is LeaseState.HELD:
            pass  # work may run under it
        elif lease is not None and event.force:
            self._revoke_bound(lease, event.reason)
        ledger.effects.append(RevokeAnswered(event.lease, was))

    def _revoke_bound(self, lease: LeaseEntry, reason: str) -> None:
        """Tells the executor to kill the work; the tokens stay counted until it says that the work is dead."""
        lease.state = LeaseState.REVOKING
        name, holder = lease.bucket.limits.name, lease.holder.session_id
        self._ledger.effects.append(Revoked(holder, lease.lease_id, name, lease.client_session_id, reason))
