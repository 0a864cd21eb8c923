"""The limiter itself: events in, effects out. No I/O, no clock, no tasks.

    QUEUED -> GRANTED -> BOUND -> RELEASED

The rules, with the names that docs/explanation/limiter.md gives them:

R1   Only the head of a queue is granted. A waiter whose stream is lost is skipped and keeps its ticket for the grace.
R2   A granted lease can be taken back at any time: its client is gone for longer than the grace, `start_by` has passed,
     or the request was cancelled. An executor that comes later is refused. A held lease (one with a hold time, which
     nobody binds) ends by its release, its hold time or an operator alone.
R3   A bind succeeds only for a granted lease of the session that the executor presents; repeating it is harmless.
R4   An executor starts a program only after the bind was answered, while its session is valid.
R5   An executor kills what it has bound when its session lapses.
R6   A bound lease is freed by its executor's release, by a hello of that executor that omits it, or when that executor
     has been silent for so long that it has provably killed its work. Never by a disconnect.
R7   Nothing is decided once `lead_until` has come: from then on another limiter may lead.
R8   An executor is welcomed only when the next leader would find it on the roster.
R9   Nothing is granted after a start until every executor of the roster has reported, or has provably stopped, and
     clients and holders have had the time to return.
R10  Of what this limiter gave, what a hello lists is kept, what it omits is freed, and requests return to their places.
     What an earlier one gave counts once, and during the recovery: tickets, and held leases within the limit; whoever
     makes the events has seen the proof. Executors are believed where the earlier one had let them in.
R11  Lowering a limit revokes nothing: nothing is granted until what is held has fallen below it. Nothing passes a head
     that does not fit.

Time is the `now` of each call, in seconds, never going backwards. Whatever is due by then happens first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from limiter.core.bucket import Bucket, BucketLimits
from limiter.core.effects import Configured, Effect, SteppedDown
from limiter.core.events import (
    Acquire,
    Bind,
    Cancel,
    Configure,
    Disconnect,
    Event,
    Goodbye,
    Heartbeat,
    Hello,
    LeadUntil,
    Reading,
    ReadOn,
    Release,
    Returning,
    Revoke,
    RosterFailed,
    RosterKept,
    Tick,
)
from limiter.core.ids import LeaseId
from limiter.core.lease import LeaseEntry, Request, Session
from limiter.core.ledger import Ledger, Tombstone, waiting_for
from limiter.core.limits import Timing
from limiter.core.reasons import LeaseState, RejectReason, SessionKind
from limiter.core.recovery import Member, Recovery, Roster
from limiter.core.rules import LeaseRules, RequestRules
from limiter.core.session_rules import SessionRules
from limiter.core.statistics import LimiterStatistics, snapshot

_OVERDUE = {LeaseState.GRANTED: "no executor bound it in time", LeaseState.HELD: "its hold time has passed"}


class LimiterCore:
    """Decides who may run. Not thread-safe; call it from one place."""

    def __init__(
        self,
        epoch: int,
        buckets: Iterable[BucketLimits],
        *,
        now: float,
        timing: Timing | None = None,
        roster: Sequence[Member] | None = (),
        follows: bool = False,
        keeps_roster: bool = False,
    ) -> None:
        """`epoch` must be higher than that of every limiter before it (1 or more). `roster` names the executors of the
        limiter before, empty when there were none; None: nobody knows. `follows`: there may have been a limiter before,
        whose clients are waited for. `keeps_roster`: `RosterChanged` is answered."""
        self.timing = timing or Timing()
        self._started = now
        self._lead_until = float("inf")
        self._leads = True
        given = [Bucket(limits, now) for limits in buckets]
        holds = any(bucket.limits.max_hold for bucket in given)
        self._ledger = Ledger(
            epoch,
            given,
            recovery=Recovery(roster, self.timing, now, follows=follows, holds=holds),
            roster=Roster(roster or (), kept=keeps_roster),
            tombstone_ttl=self.timing.tombstone_ttl,
            max_tombstones=self.timing.max_tombstones,
        )
        requests = RequestRules(self._ledger, self.timing)
        leases = LeaseRules(self._ledger)
        sessions = self._session_rules = SessionRules(self._ledger, requests, self.timing)
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            Acquire: requests.acquire,
            Cancel: requests.cancel,
            Release: leases.release,
            Bind: leases.bind,
            Revoke: leases.revoke,
            Hello: sessions.hello,
            ReadOn: sessions.read_on,
            Disconnect: sessions.disconnect,
            Goodbye: sessions.goodbye,
            Returning: sessions.returning,
            Reading: sessions.reading,
            Heartbeat: sessions.heartbeat,
            RosterKept: sessions.roster_kept,
            RosterFailed: sessions.roster_failed,
            LeadUntil: self._nothing_more,
            Configure: self._configure,
            Tick: self._nothing_more,
        }
        sessions.recover(now)

    @property
    def epoch(self) -> int:
        """Epoch of the leases and tickets that this core issues."""
        return self._ledger.epoch

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Applies one event at time `now` and returns what has to be told, in order."""
        if type(event) is LeadUntil and self._leads:
            # It may be told late, when nothing else happens: whoever renews knows that the term has not ended between.
            self._lead_until = event.until
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Effect]:
        """The same for events of one instant, in order, none of which is a `LeadUntil`: cheaper than one by one."""
        if now >= self._lead_until:
            return self._step_down()
        ledger, handlers = self._ledger, self._handlers
        effects = ledger.effects = []
        if ledger.deadlines.due(now):
            self._expire(now)
        for event in events:
            handlers[type(event)](event, now)
        return effects

    def next_deadline(self) -> float | None:
        """When to send the next `Tick`, on the same clock as `now`; None: nothing happens by itself."""
        due = self._ledger.deadlines.next() if self._leads else None
        if self._leads and self._lead_until < float("inf"):
            return self._lead_until if due is None else min(due, self._lead_until)
        return due

    @property
    def recovering(self) -> bool:
        """True if nothing is granted yet, because programs of an earlier leader may be running uncounted."""
        return self._ledger.recovery.active

    def heeds_claims(self, now: float) -> bool:
        """Says whether a client may bring what an earlier leader gave it."""
        return self._ledger.recovery.heeds_claims(now)

    @property
    def open_sessions(self) -> int:
        """Number of sessions, of any kind."""
        return len(self._ledger.sessions)

    def statistics(self, now: float) -> LimiterStatistics:
        """The state of every bucket at one instant."""
        return snapshot(self._ledger, now, now - self._started)

    def sessions(self, limit: int) -> list[Session]:
        """At most `limit` sessions, executors first, then in the order of their arrival. They are to be read at once,
        and never changed."""
        return sorted(self._ledger.sessions.values(), key=lambda each: each.kind is not SessionKind.EXECUTOR)[:limit]

    def leases(self, *, after: str = "", limit: int = 100) -> list[LeaseEntry]:
        """At most `limit` leases by id, those after the id `after`. ValueError when `after` is not an id. They are to
        be read at once, and never changed."""
        first = LeaseId.parse(after) if after else LeaseId(0, 0)
        chosen = [each for each in self._ledger.leases.values() if each.lease_id > first]
        return sorted(chosen, key=lambda each: each.lease_id)[:limit]

    # Leading, configuration and time

    def _step_down(self) -> list[Effect]:
        """The first time says so; there is no way back."""
        self._lead_until = float("-inf")
        leads, self._leads = self._leads, False
        return [SteppedDown()] if leads else []

    def _configure(self, event: Configure, now: float) -> None:
        ledger, limits = self._ledger, event.limits
        bucket = ledger.buckets.get(limits.name)
        version = bucket.limits.version if bucket is not None else 0
        if event.expected_version not in (None, version):
            ledger.effects.append(Configured(limits.name, version, False))
            return
        limits = replace(limits, version=version + 1)
        ledger.effects.append(Configured(limits.name, limits.version, True))
        if bucket is None:
            ledger.buckets[limits.name] = Bucket(limits, now)
            return
        order = bucket.limits.order
        bucket.configure(limits, now)
        for request in waiting_for(ledger, bucket):
            refusal = limits.refusal(request.tokens, request.hold)
            if refusal:
                ledger.reject(request, RejectReason.INVALID, refusal)
        if limits.order is not order:
            bucket.reorder(list(bucket.queue))
        ledger.pump(bucket, now)

    def _nothing_more(self, event: LeadUntil | Tick, now: float) -> None:
        """Does nothing: `handle` has noted until when it leads, and what is due has happened."""

    def _expire(self, now: float) -> None:
        ledger = self._ledger
        while (item := ledger.deadlines.pop_due(now)) is not None:
            if isinstance(item, LeaseEntry):
                ledger.revoke(item, _OVERDUE[item.state])
                ledger.pump(item.bucket, now)
            elif isinstance(item, Request):
                message = f"{now - item.since:.1f} s in the queue of bucket {item.bucket.limits.name} were not enough"
                ledger.reject(item, RejectReason.QUEUE_TIMEOUT, message, item.bucket.retry_after(now))
                ledger.pump(item.bucket, now)
            elif isinstance(item, Bucket):
                ledger.pump(item, now)
            elif isinstance(item, Tombstone):
                ledger.tombstones.forget(item)
            elif isinstance(item, Recovery):
                self._session_rules.recover(now)
            else:
                self._session_rules.expire(item, now)
