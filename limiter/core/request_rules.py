"""Rules for asking: who gets a place in a queue, what a repeat means, and how a request is withdrawn."""

from __future__ import annotations

from limiter.core.effects import Rejected, Released
from limiter.core.events import Acquire, Cancel
from limiter.core.lease import Request
from limiter.core.ledger import Ledger
from limiter.core.reasons import LeaseState, RejectReason, SessionKind
from limiter.core.reconcile import place
from limiter.core.session import Session
from limiter.core.timing import Timing

__all__ = ["RequestRules"]


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
            if event.attempt < known.attempt:
                self._reject(event, RejectReason.INVALID, f"attempt is {event.attempt}, but {known.attempt} is known")
                return
            unbound = known.lease is None or known.lease.state is LeaseState.GRANTED
            if event.attempt == known.attempt or unbound:
                known.attempt = event.attempt
                ledger.repeat(known, now)
                return
        problem = self._problem(event, session, now)
        if problem is not None:
            ledger.effects.append(problem)
            if session.kind is SessionKind.UNARY and not session.requests:
                del ledger.sessions[session.session_id]
            return
        if event.ticket is None:
            bucket = ledger.buckets[event.bucket]
            ledger.admit(place(ledger, session, event, bucket, now), now, event.queue_timeout)
        else:
            self.take_back(event, session, now)
            ledger.pump(ledger.buckets[event.bucket], now)

    def take_back(self, event: Acquire, session: Session, now: float) -> None:
        """Takes in a request of a hello, in the place of its ticket, or says why not. The caller pumps."""
        ledger = self._ledger
        problem = self._problem(event, session, now)
        if problem is not None:
            ledger.effects.append(problem)
            return
        request = place(ledger, session, event, ledger.buckets[event.bucket], now)
        ledger.readmit(request, now + event.queue_timeout)
        if request.ticket != event.ticket:
            ledger.repeat(request, now)

    def _unary_session(self, event: Acquire, now: float) -> Session | None:
        """A session for a unary call, or None after a rejection."""
        ledger = self._ledger
        if not event.unary:
            self._reject(event, RejectReason.INVALID, f"session {event.session_id} is not known; say hello first")
            return None
        if len(ledger.sessions) >= self._timing.max_sessions:
            self._reject(event, RejectReason.QUEUE_FULL, f"{len(ledger.sessions)} sessions are open, which is all", 1.0)
            return None
        session = Session(event.session_id, SessionKind.UNARY, event.session_id, now)
        ledger.sessions[event.session_id] = session
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
        elif ledger.tombstones and (stone := ledger.tombstones.find(event.session_id, event.request_id)) is not None:
            if event.attempt > stone.attempt:
                return None
            reason = RejectReason.CANCELLED
            message = f"attempt {event.attempt} of request {event.request_id} was released or cancelled before"
        else:
            return None
        if bucket is not None:
            bucket.rejected_total += 1
        return Rejected(event.session_id, event.request_id, event.attempt, reason, message, after)

    def _reject(self, event: Acquire, reason: RejectReason, message: str, retry_after: float = 0.0) -> None:
        rejected = Rejected(event.session_id, event.request_id, event.attempt, reason, message, retry_after)
        self._ledger.effects.append(rejected)

    def cancel(self, event: Cancel, now: float) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
        request = session.requests.get(event.request_id) if session is not None else None
        released = bound = False
        if request is not None and event.attempt >= request.attempt:
            if request.waiting:
                released = True
                self._withdraw(request, now)
            elif request.lease is not None and request.lease.state is LeaseState.GRANTED:
                released = True
                request.bucket.released_total += 1
                ledger.free(request.lease)
                ledger.pump(request.bucket, now)
            else:
                bound = True
        newest = request is None or event.attempt >= request.attempt
        if newest and (session is None or session.kind is SessionKind.UNARY):
            ledger.tombstones.bury(event.session_id, event.request_id, event.attempt, now)
        ledger.effects.append(Released(event.session_id, released, bound))

    def _withdraw(self, request: Request, now: float) -> None:
        """Ends a waiting request by the word of who asked; what waited behind it may fit now."""
        request.bucket.cancelled_total += 1
        session = request.session
        if session.kind is SessionKind.UNARY:
            message = f"request {request.request_id} was cancelled"
            self._ledger.effects.append(
                Rejected(session.session_id, request.request_id, request.attempt, RejectReason.CANCELLED, message)
            )
        self._ledger.drop(request)
        self._ledger.pump(request.bucket, now)
