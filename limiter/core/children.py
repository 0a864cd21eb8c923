"""Requests with a parent: they wait in a line under it, and are granted within its tokens, one at a time.

Invariants: nothing is granted under a parent that has ended or is being revoked; what waits for one that has ended is
refused; every change below a parent is noted in `bucket.stirred`, and looked at by the next `grant()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limiter.core.effects import Queued
from limiter.core.family import Families
from limiter.core.reasons import LeaseState, RejectReason

if TYPE_CHECKING:
    from limiter.core.bucket import Bucket
    from limiter.core.family import Line
    from limiter.core.ids import LeaseId
    from limiter.core.lease import Lease, Request
    from limiter.core.ledger import Ledger

__all__ = ["Children"]


class Children:
    """Part of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.families = Families()

    def admit(self, request: Request, parent_id: LeaseId, now: float, timeout: float) -> None:
        """Takes in a new request with a parent: grants it if no other child has a lease, lets it wait otherwise."""
        ledger, bucket = self._ledger, request.bucket
        line = request.line = self.families.line(parent_id)
        ledger.wait(request, now + timeout)
        position = line.queue.append(request)
        bucket.stirred.append(parent_id)
        if not ledger.recovery.active:
            self.grant(bucket, now)
        if request.waiting:
            session_id = request.session.session_id
            ledger.effects.append(Queued(session_id, request.request_id, request.ticket, position, 0.0))

    def find_line(self, request: Request, parent_id: LeaseId) -> None:
        """Its line is where a waiting request is put back to."""
        request.line = self.families.line(parent_id)
        request.bucket.stirred.append(parent_id)

    def ended(self, lease: Lease) -> None:
        """A lease has ended: what waits under it, or beside it, is to be looked at. Called where there are lines."""
        stirred = lease.bucket.stirred
        stirred.append(lease.lease_id)
        if lease.parent is not None:
            stirred.append(lease.parent)

    def grant(self, bucket: Bucket, now: float) -> None:
        """Grants what can be, and refuses what never can."""
        stirred, bucket.stirred = bucket.stirred, []
        for parent_id in stirred:
            line, parent = self.families.lines.get(parent_id), self._ledger.leases.get(parent_id)
            if line is None:
                continue
            if parent is None:
                self._refuse(line, bucket)
            elif line.running is None and parent.state is not LeaseState.REVOKING:
                head = line.queue.head()
                if head is not None:
                    line.queue.pop(head)
                    self._ledger.stop_waiting(head)
                    self._grant(head, parent, now)

    def _refuse(self, line: Line, bucket: Bucket) -> None:
        message = f"parent is {bucket.limits.name}/{line.parent}, which has ended"
        for request in list(line.queue):
            self._ledger.reject(request, RejectReason.INVALID, message)
        if line.running is None:
            del self.families.lines[line.parent]

    def _grant(self, request: Request, parent: Lease, now: float) -> None:
        bucket, waited = request.bucket, now - request.since
        self.families.join(self._ledger.make_lease(request, 0, now), parent)
        bucket.granted_total += 1
        bucket.meter.record(now, waited)
        self._ledger.tell_grant(request, now, waited)
