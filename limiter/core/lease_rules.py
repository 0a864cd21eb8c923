"""Rules for leases: who may bind, release and revoke one."""

from __future__ import annotations

from limiter.core.effects import BindAnswered, Released, RevokeAnswered, Revoked
from limiter.core.events import Bind, Release, Revoke
from limiter.core.lease import Lease
from limiter.core.ledger import Ledger
from limiter.core.reasons import BindStatus, LeaseState, SessionKind

__all__ = ["LeaseRules"]

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
            granted = lease.state is _GRANTED
            if lease.holder is session and (granted or not event.unbound_only):
                released = True
                request = lease.request
                if request is not None and request.session.kind is _UNARY:
                    ledger.tombstones.bury(request.session.session_id, request.request_id, request.attempt, now)
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
        elif lease.state is LeaseState.GRANTED:
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
        if lease is not None and was is LeaseState.GRANTED:
            ledger.revoke(lease, event.reason)
            ledger.pump(lease.bucket, now)
        elif lease is not None and event.force:
            self._revoke_bound(lease, event.reason)
        ledger.effects.append(RevokeAnswered(event.lease, was))

    def _revoke_bound(self, lease: Lease, reason: str) -> None:
        """Tells the executor to kill the work; the tokens stay counted until it says that the work is dead."""
        lease.state = LeaseState.REVOKING
        name, holder = lease.bucket.limits.name, lease.holder.session_id
        self._ledger.effects.append(Revoked(holder, lease.lease_id, name, lease.client_session_id, reason))
