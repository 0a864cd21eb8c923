"""A hello: makes what the limiter believes about a session agree with what the session says.

The session is believed. What it lists is kept, what it omits is freed: a grant lost with a connection is found here,
and so is a lease whose release was lost. Requests come back by their tickets, so that a reconnection or a restart of
the limiter does not change their order.
"""

from __future__ import annotations

from limiter.core.bucket import Bucket
from limiter.core.events import Acquire, HeldLease, Hello
from limiter.core.ids import LeaseId, Ticket
from limiter.core.lease import Lease, Request
from limiter.core.ledger import Ledger
from limiter.core.reasons import LeaseState, ReleaseOutcome, SessionKind
from limiter.core.session import Session

__all__ = ["place", "reconcile_leases", "reconcile_requests"]


def reconcile_leases(ledger: Ledger, session: Session, hello: Hello, now: float) -> tuple[LeaseId, ...]:
    """Frees what the hello omits, adopts what has run since an earlier epoch, and returns what is unknown.

    Requests whose grants were lost wait again, with the tickets they had. Nothing is granted here.
    """
    listed = {held.lease for held in hello.held}
    wanted = {acquire.request_id for acquire in hello.queued}
    for lease in list(session.leases.values()):
        if lease.lease_id in listed:
            continue
        request = lease.request
        lost = request is not None and request.session is session and lease.state is LeaseState.GRANTED
        if lost and request is not None and request.request_id in wanted:
            lease.bucket.revoked_total += 1
        else:
            lease.bucket.released_total += 1
            lease.bucket.outcomes[ReleaseOutcome.UNUSED if lost else ReleaseOutcome.OK] += 1
        ledger.free(lease)
    return tuple(held.lease for held in hello.held if not _holds(ledger, session, held, now))


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
        if hold <= 0 or held.client_session_id != session.session_id:
            return False
        lease.state, lease.soft = LeaseState.GRANTED, True
        ledger.deadlines.set(lease, now + hold)
    ledger.adopt(lease)
    return True


def reconcile_requests(ledger: Ledger, session: Session, hello: Hello) -> tuple[list[Acquire], list[Bucket]]:
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
    known = [acquire for acquire in listed.values() if acquire.request_id not in session.requests]
    last = Ticket(ledger.epoch, ledger.last_ticket)
    known.sort(key=lambda acquire: acquire.ticket or Ticket(last.epoch + 1, 0))
    return known, list(touched)


def place(ledger: Ledger, session: Session, acquire: Acquire, bucket: Bucket, now: float) -> Request:
    """The record of a request, with the ticket that it presents if this or an earlier limiter can have issued it."""
    ticket = acquire.ticket
    if ticket is None or ticket > (ledger.epoch, ledger.last_ticket) or ticket.seq < 1 or ticket.epoch < 1:
        ledger.last_ticket += 1
        ticket = Ticket(ledger.epoch, ledger.last_ticket)
    start_by = acquire.hold or (bucket.limits.start_by if acquire.start_by is None else acquire.start_by)
    return Request(
        session,
        acquire.request_id,
        acquire.attempt,
        bucket,
        acquire.tokens,
        acquire.tenant,
        start_by,
        ticket,
        now,
        acquire.hold,
    )
