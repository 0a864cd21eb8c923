"""The client's end of a session as a pure state machine: frames in, frames and news out. No I/O, no clock, no tasks.

Invariants: the hello is the first frame of every connection and lists everything that is waited for and held, so that
nothing depends on what a lost connection delivered; nothing but the hello is sent before the welcome; a grant that
nobody waits for is given back at once; within a frame, what is withdrawn before it was sent is not sent at all.
Times are the caller's monotonic seconds.
"""

from __future__ import annotations

import secrets
from collections import deque

from limiter.client.keep_alive import KeepAlive
from limiter.client.lease import BindOutcome, Lease
from limiter.client.session_events import (
    Bound,
    GoneAway,
    Lost,
    News,
    Place,
    RequestGranted,
    RequestRefused,
    SessionWelcomed,
    Wanted,
    fill_acquire,
    lease_message,
    place_of,
)
from limiter.core.limits import CLOCK_RATE_ERROR
from limiter.core.reasons import BindStatus, RejectReason, ReleaseOutcome, SessionKind
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import BIND_STATUSES, KIND_VALUES, OUTCOME_VALUES, REJECT_REASONS, session_of

MAX_FRAME_ITEMS = 512
"""Items in one frame."""
_BEAT_SHARE, _BEAT_S = 0.25, 1.5
"""An executor's heartbeats: so often in its ttl, and as often as clients beat where that is long, so that a connection
that carries nothing is found as soon."""
_MAX_PLACES = 10_000
"""Tickets of leases that are remembered: of those that nobody asks to replace too."""
_STALLED_SHARE, _STALLED_S = 0.5, 6.0
"""An acknowledgement that is overdue by this share of the ttl, and by so much where that is long, means that the
connection is dead: a busy machine takes seconds to answer."""


class SessionMachine:
    """One session of a client or an executor, over any number of connections."""

    def __init__(self, kind: SessionKind, name: str = "") -> None:
        self.kind = kind
        self._secret = secrets.token_hex(16)
        self.session_id = session_of(self._secret)
        """Another one in each process: a restarted executor runs nothing of what its predecessor ran."""
        self.name = name
        self.epoch = 0
        """Epoch of the limiter that said welcome last; 0 before the first."""
        self.welcomed = False
        """True if the current connection is usable."""
        self.valid_until = float("-inf")
        """Executor: bound work may run until then."""
        self.waiting: dict[str, Wanted] = {}
        self.held: dict[Lease, int] = {}
        """Leases in hand, in the order in which they came; their tokens when bound here, 0 before."""
        self._places: dict[Lease, Place] = {}
        """Tickets of leases in hand, and of those that may have been lost with a limiter, oldest first."""
        self._holds: dict[Lease, tuple[float, int, bytes]] = {}
        """Leases that nobody will bind: the end of the hold time, the tokens, and the proof."""
        self._say_hello = False
        self._serial = 0
        self._connection = 0
        self._ttl = 0.0
        self._heartbeat = 0
        self._next_heartbeat = float("inf")
        self._unacked: dict[int, float] = {}
        self._pulse = KeepAlive() if kind is SessionKind.CLIENT else None
        self._releases: deque[tuple[Lease, ReleaseOutcome]] = deque()
        self._cancels: deque[Wanted] = deque()
        self._acquires: dict[str, Wanted] = {}
        self._binds: dict[Lease, str] = {}
        self._binding: dict[Lease, None] = {}

    # What the owner wants

    def acquire(
        self,
        now: float,
        *,
        bucket: str,
        tokens: int,
        queue_timeout: float,
        tenant: str = "",
        request_id: str = "",
        hold: float = 0.0,
        instead_of: Lease | None = None,
    ) -> str:
        """Asks for a lease and returns the request's id. ValueError when that id is waiting already."""
        self._serial += 1
        request_id = request_id or f"#{self._serial}"
        if request_id in self.waiting:
            raise ValueError(f"request_id is {request_id!r}, which is waiting already")
        # Attempts grow over all requests of a session, so that an id can be used again at any time.
        wanted = Wanted(request_id, self._serial, bucket, tokens, tenant, now + queue_timeout)
        wanted.hold = hold
        if instead_of is not None and (ticket := self._places.pop(instead_of, None)) is not None:
            wanted.place = (instead_of.epoch, ticket)
        self.waiting[request_id] = self._acquires[request_id] = wanted
        return request_id

    def trace(self, request_id: str, traceparent: str) -> None:
        """Says whose wait it is, before it is sent."""
        self.waiting[request_id].traceparent = traceparent

    def abandon(self, request_id: str) -> None:
        """Stops waiting. A grant that is on its way will be given back."""
        wanted = self.waiting.pop(request_id, None)
        if wanted is not None and self._acquires.pop(request_id, None) is None:
            self._cancels.append(wanted)

    def release(self, lease: Lease, outcome: ReleaseOutcome) -> None:
        """Gives a lease back; nothing happens when it is not held or being bound here."""
        if self._binds.pop(lease, None) is not None:
            self._binding.pop(lease, None)
            return
        binding = lease in self._binding
        self._binding.pop(lease, None)
        self._holds.pop(lease, None)
        if self.welcomed and lease.epoch == self.epoch:
            self._places.pop(lease, None)
        if self.held.pop(lease, None) is not None or binding:
            self._releases.append((lease, outcome))

    def bind(self, lease: Lease, run_id: str) -> None:
        """Claims a lease for a run; answered by `Bound`, or by `disconnected()`."""
        if lease not in self._binding:
            self._binding[lease] = None
            self._binds[lease] = run_id

    def idle(self) -> list[Lease]:
        """Leases in hand under which nothing can be running: neither bound nor held without."""
        return [lease for lease, tokens in self.held.items() if not tokens and lease not in self._holds]

    # What the connection does

    def connected(self, now: float) -> None:
        """A stream is open; the next frame is the hello."""
        self._say_hello, self.welcomed = True, False
        self._connection += 1

    def disconnected(self) -> list[Lease]:
        """The stream has ended. Returns the leases whose binds will not be answered."""
        self._say_hello = self.welcomed = False
        self._next_heartbeat = float("inf")
        self._unacked.clear()
        if self._pulse is not None:
            self._pulse.closed()
        # The next hello says all of this by what it lists and omits.
        self._releases.clear()
        self._cancels.clear()
        unanswered = list(self._binding)
        self._binds.clear()
        self._binding.clear()
        return unanswered

    def received(self, frame: pb.SessionResponse, now: float) -> list[News]:
        """Handles one frame from the limiter."""
        news: list[News] = []
        if frame.HasField("welcome"):
            self._welcome(frame.welcome, now, news)
        elif self._pulse is not None:
            self._pulse.heard(now)
        for queued in frame.queued:
            wanted = self.waiting.get(queued.request_id)
            if wanted is not None:
                wanted.ticket = place_of(queued.ticket)
        for grant in frame.grants:
            lease = Lease.of(grant.lease)
            wanted = self.waiting.get(grant.request_id)
            if wanted is None or wanted.attempt != grant.attempt:
                self._releases.append((lease, ReleaseOutcome.UNUSED))
                continue
            del self.waiting[grant.request_id]
            self.held[lease] = 0
            self._remember(lease, place_of(grant.ticket) if grant.HasField("ticket") else wanted.ticket)
            if wanted.hold:
                self._holds[lease] = (now + wanted.hold, wanted.tokens, grant.hold_proof)
            news.append(RequestGranted(grant.request_id, lease))
        for reject in frame.rejects:
            wanted = self.waiting.get(reject.request_id)
            if wanted is not None and wanted.attempt == reject.attempt:
                del self.waiting[reject.request_id]
                reason = REJECT_REASONS.get(reject.reason, RejectReason.INVALID)
                news.append(RequestRefused(reject.request_id, reason, reject.message, reject.retry_after_s))
        for result in frame.bind_results:
            self._bound(result, news)
        for revoke in frame.revokes:
            lease = Lease.of(revoke.lease)
            if lease in self.held:
                self._lose(lease, revoke.reason, news)
        if frame.heartbeat_ack:
            self._acked(frame.heartbeat_ack)
        elif frame.HasField("welcome") and self.kind is SessionKind.EXECUTOR:
            self._next_heartbeat = now  # that of the hello came before its session was open
        if frame.HasField("go_away"):
            news.append(GoneAway(frame.go_away.reason, frame.go_away.retry_after_s))
        return news

    def take_frame(self, now: float) -> pb.SessionRequest | None:
        """The next frame to send at once, or None when there is nothing to say."""
        if self._say_hello:
            self._say_hello = False
            return self._hello(now)
        if not self.welcomed:
            return None
        beat = now >= self._beat_at()
        if not (self._releases or self._cancels or self._acquires or self._binds or beat):
            return None
        frame = pb.SessionRequest()
        room = MAX_FRAME_ITEMS
        while self._releases and room:
            released, outcome = self._releases.popleft()
            release = frame.releases.add()  # cheaper than a message that is copied in
            release.outcome = OUTCOME_VALUES[outcome]
            message = release.lease
            message.bucket, message.epoch, message.seq = released.bucket, released.epoch, released.seq
            message.client_session_id = released.client_session_id
            room -= 1
        while self._cancels and room:
            cancelled = self._cancels.popleft()
            frame.cancels.add(request_id=cancelled.request_id, attempt=cancelled.attempt)
            room -= 1
        while self._acquires and room:
            wanted = self._acquires.pop(next(iter(self._acquires)))
            if wanted.place is not None:
                self._take_place(wanted, *wanted.place)
            fill_acquire(frame.acquires.add(), wanted, now)
            room -= 1
        while self._binds and room:
            lease = next(iter(self._binds))
            frame.binds.add(lease=lease_message(lease), run_id=self._binds.pop(lease))
            room -= 1
        if beat:
            self._beat(frame, now)
        return frame

    def last_frame(self) -> pb.SessionRequest | None:
        """An executor's goodbye, once it has nothing else to say and nothing can be running; else None."""
        runs = self.held or self._binding
        ends = self.kind is SessionKind.EXECUTOR and self.welcomed and not runs
        return pb.SessionRequest(goodbye=True) if ends else None

    # What time does

    def next_deadline(self) -> float | None:
        """When a heartbeat is due, or the answer to one; None while there is none, as before the welcome. A client's
        may come earlier when it begins to wait for something."""
        if not self.welcomed:
            return None
        deadline = self._beat_at()
        if self._pulse is not None:
            deadline = min(deadline, self._pulse.give_up_at())
        return deadline if deadline < float("inf") else None

    def stalled(self, now: float) -> bool:
        """Says whether an acknowledgement is so late that the connection must be taken for dead."""
        if self._pulse is not None:
            return self.welcomed and self._pulse.dead(now)
        oldest = next(iter(self._unacked.values()), None)
        return self.welcomed and oldest is not None and now - oldest > min(self._ttl * _STALLED_SHARE, _STALLED_S)

    # Internal

    def _hello(self, now: float) -> pb.SessionRequest:
        # Whether a place can be taken is known after the welcome only.
        self._acquires = {name: wanted for name, wanted in self._acquires.items() if wanted.place is not None}
        hello = pb.Hello(
            session_id=self.session_id,
            kind=KIND_VALUES[self.kind],
            name=self.name,
            connection=self._connection,
            secret=self._secret,
        )
        for lease, tokens in self.held.items():
            held = hello.held.add(lease=lease_message(lease), tokens=tokens)
            if lease in self._holds:
                until, held.tokens, held.proof = self._holds[lease]
                held.hold_s = max(0.001, until - now)
        for wanted in self.waiting.values():
            if wanted.place is None:
                fill_acquire(hello.queued.add(), wanted, now)
        frame = pb.SessionRequest(hello=hello)
        if self.kind is SessionKind.EXECUTOR:
            self._beat(frame, now)
        return frame

    def _welcome(self, welcome: pb.Welcome, now: float, news: list[News]) -> None:
        self.welcomed, self.epoch, self._ttl = True, welcome.epoch, welcome.ttl_s
        if self.kind is SessionKind.EXECUTOR:
            self._next_heartbeat = now + self._beat_every
        if self._pulse is not None:
            self._pulse.opened(now, welcome.quiet_s)
        news.append(SessionWelcomed(welcome.epoch, welcome.resumed))
        for unknown in welcome.unknown:
            lease = Lease.of(unknown)
            if lease in self.held:
                self._lose(lease, "the limiter does not know it any more", news)

    def _remember(self, lease: Lease, place: Place | None) -> None:
        if place is not None:
            self._places[lease] = place
        if len(self._places) > _MAX_PLACES:
            del self._places[next(iter(self._places))]

    def _take_place(self, wanted: Wanted, epoch: int, ticket: Place) -> None:
        """Nobody of this epoch was asked under that ticket, unless the limiter is still the one that granted it."""
        wanted.place = None
        if epoch < self.epoch:
            wanted.ticket = ticket

    def _bound(self, result: pb.BindResult, news: list[News]) -> None:
        lease = Lease.of(result.lease)
        status = BIND_STATUSES.get(result.status, BindStatus.UNKNOWN_LEASE)
        if lease not in self._binding:
            if status is BindStatus.BOUND and lease not in self.held:
                self._releases.append((lease, ReleaseOutcome.UNUSED))
            return
        del self._binding[lease]
        if status is BindStatus.BOUND:
            self.held[lease] = result.tokens or 1
        news.append(Bound(BindOutcome(lease, status, result.owner)))

    def _lose(self, lease: Lease, reason: str, news: list[News]) -> None:
        """A client drops a lost lease; an executor counts it as held until its work is dead and released."""
        if not self.held[lease]:
            del self.held[lease]
            self._holds.pop(lease, None)
        news.append(Lost(lease, reason))

    @property
    def _beat_every(self) -> float:
        return min(self._ttl * _BEAT_SHARE, _BEAT_S)

    def _beat_at(self) -> float:
        if self._pulse is None:
            return self._next_heartbeat
        return self._pulse.beat_at() if self.waiting or self.held else float("inf")

    def _beat(self, frame: pb.SessionRequest, now: float) -> None:
        self._heartbeat += 1
        frame.heartbeat = self._heartbeat
        if self._pulse is not None:
            self._pulse.beat(now)
            return
        self._unacked[self._heartbeat] = now
        self._next_heartbeat = now + self._beat_every if self._ttl else float("inf")

    def _acked(self, number: int) -> None:
        """Validity counts from the sending of the heartbeat: whatever came later may not have reached the limiter."""
        sent = self._unacked.get(number)
        if sent is not None:
            self.valid_until = max(self.valid_until, sent + self._ttl * (1 - 2 * CLOCK_RATE_ERROR))
        for old in [each for each in self._unacked if each <= number]:
            del self._unacked[old]
