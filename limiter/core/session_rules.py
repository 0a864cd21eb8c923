"""Rules for sessions: how one opens, resumes, falls silent and ends."""

from __future__ import annotations

from limiter.core.effects import HeartbeatAcked, Refused, SessionEnded, Welcomed
from limiter.core.events import Disconnect, Heartbeat, Hello
from limiter.core.ledger import Ledger
from limiter.core.reasons import SessionKind
from limiter.core.reconcile import reconcile_leases, reconcile_requests
from limiter.core.request_rules import RequestRules
from limiter.core.session import Session
from limiter.core.timing import Timing

__all__ = ["SessionRules"]


class SessionRules:
    """Handles `Hello`, `Disconnect`, `Heartbeat` and the ends of sessions."""

    def __init__(self, ledger: Ledger, requests: RequestRules, timing: Timing) -> None:
        self._ledger = ledger
        self._requests = requests
        self._timing = timing

    def hello(self, event: Hello, now: float) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
        resumed = session is not None
        if session is None:
            if len(ledger.sessions) >= self._timing.max_sessions:
                message = f"{len(ledger.sessions)} sessions are open, which is all that may"
                ledger.effects.append(Refused(event.session_id, message, 1.0))
                return
            session = ledger.sessions[event.session_id] = Session(event.session_id, event.kind, event.name, now)
        elif session.kind is not event.kind:
            message = f"session_id is {event.session_id!r}, which is a session of another kind ({session.kind})"
            ledger.effects.append(Refused(event.session_id, message))
            return
        session.connected, session.gone_at = True, float("inf")
        session.name, session.last_heard = event.name, now
        if session.kind is SessionKind.EXECUTOR:
            ledger.deadlines.set(session, now + self._timing.executor_silence)
        else:
            ledger.deadlines.clear(session)
        unknown = reconcile_leases(ledger, session, event, now)
        ledger.effects.append(Welcomed(session.session_id, resumed, unknown))
        known, touched = reconcile_requests(ledger, session, event)
        for acquire in known:
            self._requests.take_back(acquire, session, now)
        for bucket in touched:
            ledger.pump(bucket, now)

    def disconnect(self, event: Disconnect, now: float) -> None:
        ledger = self._ledger
        session = ledger.sessions.get(event.session_id)
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

    def heartbeat(self, event: Heartbeat, now: float) -> None:
        session = self._ledger.sessions.get(event.session_id)
        if session is not None:
            session.last_heard = now
            self._ledger.effects.append(HeartbeatAcked(event.session_id, event.number))

    def expire(self, session: Session, now: float) -> None:
        """Ends a client that has been gone for the grace, and an executor that has been silent for its time."""
        ledger, timing = self._ledger, self._timing
        if session.kind is not SessionKind.EXECUTOR:
            ledger.end_session(session, "its client has gone", now)
            return
        silent_at = session.last_heard + timing.executor_silence
        if silent_at <= now:
            ledger.effects.append(SessionEnded(session.session_id, "it was silent for too long"))
            ledger.end_session(session, "its executor was silent for too long", now)
            return
        if session.gone_at + timing.grace <= now:
            ledger.drop_unbound(session, "the executor that asked for it has gone", now)
        ledger.deadlines.set(session, silent_at)
