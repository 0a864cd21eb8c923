"""The books: who waits, who holds what, and the few moves that change them.

Invariants: `bucket.held` is the sum of the tokens of the bucket's leases, and no grant makes it exceed the limit;
nothing is granted during a recovery; grants leave a bucket in the order of its queue, among connected sessions; a
request waits or has a lease, never both; whoever ends something takes it out of every index here. Effects are collected
in `effects` in the order of the moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from limiter.core.bucket import Bucket
from limiter.core.deadlines import NEVER, Deadlines
from limiter.core.effects import Effect, Granted, Queued, Rejected, Revoked
from limiter.core.ids import LeaseId, Ticket
from limiter.core.lease import LeaseEntry, Request, Session
from limiter.core.reasons import LeaseState, RejectReason, ReleaseOutcome, SessionKind
from limiter.core.recovery import Recovery, Roster


class Tombstone:
    """The end of one request."""

    __slots__ = ("deadline", "key")

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key
        self.deadline = NEVER


class Tombstones:
    """Unary requests that have ended lately, so that a late or repeated message about one finds nothing to do.

    Bounded: the oldest is forgotten first, and each after its time, which `deadlines` keeps.
    """

    def __init__(self, deadlines: Deadlines[Any], *, ttl: float, most: int) -> None:
        self._deadlines = deadlines
        self._ttl = ttl
        self._most = most
        self._stones: dict[tuple[str, str], Tombstone] = {}

    def __len__(self) -> int:
        return len(self._stones)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._stones

    def bury(self, session_id: str, request_id: str, now: float) -> None:
        """Remembers for a while that this request has ended."""
        key = (session_id, request_id)
        old = self._stones.pop(key, None)
        if old is not None:
            self._deadlines.clear(old)
        elif len(self._stones) >= self._most:
            self._deadlines.clear(self._stones.pop(next(iter(self._stones))))
        stone = self._stones[key] = Tombstone(key)
        self._deadlines.set(stone, now + self._ttl)

    def forget(self, stone: Tombstone) -> None:
        """Its time has come."""
        del self._stones[stone.key]


# Python 3.11 looks members of an enum up by a function, 0.07 us each, several times for a lease.
_GRANTED = LeaseState.GRANTED
_HELD = LeaseState.HELD
_UNARY = SessionKind.UNARY


class Ledger:
    """State of the limiter. `LimiterCore` decides; this keeps the books right."""

    def __init__(
        self,
        epoch: int,
        buckets: Iterable[Bucket],
        *,
        recovery: Recovery,
        roster: Roster,
        tombstone_ttl: float,
        max_tombstones: int,
    ) -> None:
        self.epoch = epoch
        self.recovery = recovery
        self.roster = roster
        self.buckets = {bucket.limits.name: bucket for bucket in buckets}
        self.sessions: dict[str, Session] = {}
        self.session_counts: Counter[SessionKind] = Counter()
        self.claimed: set[Ticket] = set()
        """Tickets of earlier leaders that were brought here: each counts once, until its request leaves without a
        grant."""
        self.leases: dict[LeaseId, LeaseEntry] = {}
        self.deadlines: Deadlines[Request | LeaseEntry | Session | Tombstone | Recovery | Bucket] = Deadlines()
        self.tombstones = Tombstones(self.deadlines, ttl=tombstone_ttl, most=max_tombstones)
        self.effects: list[Effect] = []
        self.last_ticket = 0
        self.last_lease = 0

    # Requests

    def admit(self, request: Request, now: float, timeout: float) -> None:
        """Takes in a new request with a fresh ticket: grants it if nothing is before it, queues it otherwise."""
        bucket, session = request.bucket, request.session
        session.requests[request.request_id] = request
        ready = bucket.held < bucket.cap and not bucket.queue and not self.recovery.active and bucket.fits(request)
        if ready and (bucket.rate is None or bucket.ready_at() <= now):
            self._grant(request, now)
            return
        self._wait(request, now + timeout)
        bucket.queue.add(request)
        if bucket.rate is not None and bucket.queue.head() is request:
            self.pump(bucket, now)  # sets the deadline
        self.effects.append(_queued(request))

    def readmit(self, request: Request, deadline: float) -> None:
        """Takes in a request that comes with its ticket; `pump` grants it when it is its turn."""
        request.session.requests[request.request_id] = request
        self._wait(request, deadline)
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        """Puts a waiting request into its place by its ticket."""
        request.bucket.queue.add(request)

    def park(self, session: Session) -> None:
        """Takes the session's waiting requests out of turn; they keep their tickets."""
        for request in session.requests.values():
            if request.waiting:
                request.bucket.queue.remove(request)

    def drop(self, request: Request) -> None:
        """Ends a waiting request without a grant."""
        session = request.session
        request.bucket.queue.remove(request)
        self.claimed.discard(request.ticket)
        self._stop_waiting(request)
        self._forget(request, session)

    def reject(self, request: Request, reason: RejectReason, message: str, retry_after: float = 0.0) -> None:
        """Ends a waiting request and says why."""
        request.bucket.rejected_total += 1
        self.effects.append(Rejected(request.session.session_id, request.request_id, reason, message, retry_after))
        self.drop(request)

    def pump(self, bucket: Bucket, now: float) -> None:
        """Grants from the head of the queue for as long as it fits: no request passes a bigger one."""
        if self.recovery.active:
            return
        queue = bucket.queue
        while bucket.held < bucket.cap:
            request = queue.head()
            if request is None or not bucket.fits(request):
                return
            if bucket.rate is not None and (when := bucket.ready_at()) > now:
                if when != bucket.deadline:
                    self.deadlines.set(bucket, when)
                return
            queue.pop(request)
            self._stop_waiting(request)
            self._grant(request, now)

    def repeat(self, request: Request, now: float) -> None:
        """Says again what became of a request that waits or was granted."""
        if request.waiting:
            self.effects.append(_queued(request))
        elif request.lease is not None:
            waited = request.lease.granted_at - request.since
            self.effects.append(_granted(request, request.lease, now, waited))

    # Leases

    def free(self, lease: LeaseEntry) -> None:
        """Takes a lease out of the books; its tokens can be granted again."""
        del self.leases[lease.lease_id]
        self.deadlines.clear(lease)
        bucket = lease.bucket
        bucket.held -= lease.tokens
        if lease.state is not _GRANTED and lease.state is not _HELD:
            bucket.bound -= lease.tokens
        lease.holder.leases.pop(lease.lease_id, None)
        if lease.state is _HELD:
            self._end_if_gone(lease.holder)
        request = lease.request
        if request is not None:
            request.lease = None
            self._forget(request, request.session)

    def release(self, lease: LeaseEntry, outcome: ReleaseOutcome, now: float) -> None:
        """Ends a lease by the word of who holds it."""
        bucket = lease.bucket
        bucket.count_outcome(outcome)
        if bucket.adaptive is not None:
            bucket.adapt(outcome, lease.lease_id, LeaseId(self.epoch, self.last_lease))
        self.free(lease)
        self.pump(bucket, now)

    def revoke(self, lease: LeaseEntry, reason: str) -> None:
        """Takes a lease back and tells who held it. The caller pumps."""
        lease.bucket.revoked_total += 1
        holder = lease.holder.session_id
        self.effects.append(Revoked(holder, lease.lease_id, lease.bucket.limits.name, lease.client_session_id, reason))
        self.free(lease)

    def bind(self, lease: LeaseEntry, executor: Session, run_id: str) -> None:
        """Moves a granted lease from its client to the executor that runs work under it."""
        self.deadlines.clear(lease)
        lease.holder.leases.pop(lease.lease_id, None)
        if lease.state is _HELD:
            self._end_if_gone(lease.holder)
        lease.holder = executor
        executor.leases[lease.lease_id] = lease
        lease.state = LeaseState.BOUND
        lease.run_id = run_id
        lease.bucket.bound += lease.tokens

    def adopt(self, lease: LeaseEntry) -> None:
        """Takes in a lease of an earlier epoch that a session says work is running under."""
        self.leases[lease.lease_id] = lease
        lease.holder.leases[lease.lease_id] = lease
        lease.bucket.held += lease.tokens
        if lease.state is LeaseState.BOUND:
            lease.bucket.bound += lease.tokens

    # Sessions

    def open(self, session: Session) -> None:
        """Takes a new session into the books."""
        self.sessions[session.session_id] = session
        self.session_counts[session.kind] += 1

    def close(self, session: Session) -> None:
        """Takes a session out of the books. Idempotent."""
        if self.sessions.get(session.session_id) is session:
            del self.sessions[session.session_id]
            self.session_counts[session.kind] -= 1

    def drop_unbound(self, session: Session, reason: str, now: float) -> None:
        """Ends what the session waits for and what it was granted but nobody has bound, unless it has a hold time."""
        touched: dict[Bucket, None] = {}
        for request in [each for each in session.requests.values() if each.waiting]:
            touched[request.bucket] = None
            request.bucket.cancelled_total += 1
            self.drop(request)
        for lease in [each for each in session.leases.values() if each.state is _GRANTED]:
            touched[lease.bucket] = None
            self.revoke(lease, reason)
        for bucket in touched:
            self.pump(bucket, now)

    def end_client(self, session: Session, reason: str, now: float) -> None:
        """Ends a client's session, what it waits for and what it was granted. Held leases stay, because work may run
        under them, and the session with them until the last of them has ended."""
        self.deadlines.clear(session)
        self.drop_unbound(session, reason, now)
        self._end_if_gone(session)

    def _end_if_gone(self, session: Session) -> None:
        """Takes a client out of the books that is gone for good and has nothing left."""
        if not (session.leases or session.connected) and session.deadline == NEVER:
            self.close(session)

    def end_session(self, session: Session, reason: str, now: float) -> None:
        """Ends a session and everything it waits for or holds, bound leases included."""
        self.deadlines.clear(session)
        self.close(session)
        self.drop_unbound(session, reason, now)
        touched: dict[Bucket, None] = {}
        for lease in list(session.leases.values()):
            touched[lease.bucket] = None
            self.revoke(lease, reason)
        for bucket in touched:
            self.pump(bucket, now)

    # Steps

    def _grant(self, request: Request, now: float) -> None:
        bucket, session = request.bucket, request.session
        self.last_lease += 1
        lease_id = LeaseId(self.epoch, self.last_lease)
        lease = LeaseEntry(lease_id, bucket, request.tokens, session.session_id, session, request, now)
        if request.hold:
            lease.state = _HELD
        self.leases[lease_id] = session.leases[lease_id] = request.lease = lease
        self.deadlines.set(lease, now + request.start_by)
        bucket.held += request.tokens
        bucket.granted_total += 1
        if bucket.rate is not None:
            bucket.rate.take(1, now)
        waited = now - request.since
        bucket.meter.record(now, waited)
        self.effects.append(_granted(request, lease, now, waited))

    def _wait(self, request: Request, deadline: float) -> None:
        """Counts a request among those that wait."""
        name = request.bucket.limits.name
        request.waiting = True
        request.bucket.waiting += 1
        request.session.waiting[name] = request.session.waiting.get(name, 0) + 1
        self.deadlines.set(request, deadline)

    def _stop_waiting(self, request: Request) -> None:
        """It waits no more."""
        request.waiting = False
        request.bucket.waiting -= 1
        request.session.waiting[request.bucket.limits.name] -= 1
        self.deadlines.clear(request)

    def _forget(self, request: Request, session: Session) -> None:
        """Takes an ended request out of its session, and a unary session out of the books with its last request."""
        session.requests.pop(request.request_id, None)
        if session.kind is _UNARY and not session.requests:
            self.close(session)


def waiting_for(ledger: Ledger, bucket: Bucket) -> list[Request]:
    """Everything that waits for a bucket, parked or not; O(all requests)."""
    return [
        request
        for session in ledger.sessions.values()
        for request in session.requests.values()
        if request.waiting and request.bucket is bucket
    ]


def _granted(request: Request, lease: LeaseEntry, now: float, waited: float) -> Granted:
    start_by = max(0.0, lease.deadline - now) if lease.deadline != NEVER else 0.0
    return Granted(
        request.session.session_id,
        request.request_id,
        request.bucket.limits.name,
        lease.lease_id,
        start_by,
        waited,
        request.ticket,
        request.tokens,
        request.tenant,
        request.hold > 0,
    )


def _queued(request: Request) -> Queued:
    session_id, bucket = request.session.session_id, request.bucket.limits.name
    return Queued(session_id, request.request_id, request.ticket, bucket, request.tenant)
