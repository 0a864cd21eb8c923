"""The client's end of a session as a pure state machine: frames in, frames and news out. No I/O, no clock, no tasks.

Invariants: the hello is the first frame of every connection and lists everything that is waited for and held, so that
nothing depends on what a lost connection delivered; nothing but the hello is sent before the welcome; a grant that
nobody waits for is given back at once; within a frame, what is withdrawn before it was sent is not sent at all.
Times are the caller's monotonic seconds.
"""

from __future__ import annotations

import secrets
from collections import deque

from limiter.client.keep_alive import Heartbeats, KeepAlive
from limiter.client.lease import BindOutcome, Lease
from limiter.client.session_events import (
    GoneAway,
    Lost,
    News,
    Place,
    RequestGranted,
    RequestRefused,
    Wanted,
    fill_acquire,
    lease_message,
    place_of,
)
from limiter.core.reasons import BindStatus, RejectReason, ReleaseOutcome, SessionKind
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import BIND_STATUSES, KIND_VALUES, OUTCOME_VALUES, REJECT_REASONS, session_of

_MAX_PLACES = 10_000
"""Tickets of leases that are remembered: of those that nobody asks to replace too."""


class Holdings:
    """Leases in hand, and the places in the queue that they were granted from."""

    __slots__ = ("_holds", "_places", "held")

    def __init__(self) -> None:
        self.held: dict[Lease, int] = {}
        """Leases in the order in which they came; their tokens when bound here, 0 before."""
        self._places: dict[Lease, Place] = {}
        """Tickets of leases in hand, and of those that may have been lost with a limiter, oldest first."""
        self._holds: dict[Lease, tuple[float, int, bytes]] = {}
        """Leases that nobody will bind: the end of the hold time, the tokens, and the proof."""

    def add(self, lease: Lease, wanted: Wanted, place: Place | None, proof: bytes, now: float) -> None:
        """Takes in a grant. `proof`: that of its hold time, if it has one."""
        self.held[lease] = 0
        if place is not None:
            self._places[lease] = place
        if len(self._places) > _MAX_PLACES:
            del self._places[next(iter(self._places))]
        if wanted.hold:
            self._holds[lease] = (now + wanted.hold, wanted.tokens, proof)

    def remove(self, lease: Lease, *, with_place: bool) -> bool:
        """Takes a lease out that is given back. `with_place`: nobody will ask for its place. False: not in hand."""
        self._holds.pop(lease, None)
        if with_place:
            self._places.pop(lease, None)
        return self.held.pop(lease, None) is not None

    def lose(self, lease: Lease) -> None:
        """Takes out a lease that the limiter took back, unless it is bound: it counts until its work is dead."""
        if not self.held[lease]:
            del self.held[lease]
            self._holds.pop(lease, None)

    def take_place(self, lease: Lease) -> Place | None:
        """The ticket of a lease that another one replaces; it can be taken once."""
        return self._places.pop(lease, None)

    def idle(self) -> list[Lease]:
        """Leases under which nothing can be running: neither bound nor held without."""
        return [lease for lease, tokens in self.held.items() if not tokens and lease not in self._holds]

    def list_in(self, hello: pb.Hello, now: float) -> None:
        """Lists all leases in the first frame of a connection."""
        for lease, tokens in self.held.items():
            held = hello.held.add(lease=lease_message(lease), tokens=tokens)
            if lease in self._holds:
                until, held.tokens, held.proof = self._holds[lease]
                held.hold_s = max(0.001, until - now)


_MAX_FRAME_ITEMS = 512
"""Items in one frame."""


class Outbox:
    """Things that a session has yet to say, in the order in which they leave: collects while a frame is on its way, and
    fills the next one. What is withdrawn before it was sent is not sent at all."""

    __slots__ = ("acquires", "binds", "cancels", "releases")

    def __init__(self) -> None:
        self.releases: deque[tuple[Lease, ReleaseOutcome]] = deque()
        self.cancels: deque[str] = deque()
        self.acquires: dict[str, Wanted] = {}
        self.binds: dict[Lease, str] = {}

    def __bool__(self) -> bool:
        return bool(self.releases or self.cancels or self.acquires or self.binds)

    def disconnected(self) -> None:
        """Forgets what the next hello says by what it lists and omits."""
        self.releases.clear()
        self.cancels.clear()
        self.binds.clear()

    def fill(self, frame: pb.SessionRequest, now: float, epoch: int) -> None:
        """Moves as many items into a frame as it may have. `epoch`: that of the limiter that gets it."""
        room = _MAX_FRAME_ITEMS
        while self.releases and room:
            released, outcome = self.releases.popleft()
            release = frame.releases.add()  # cheaper than a message that is copied in
            release.outcome = OUTCOME_VALUES[outcome]
            message = release.lease
            message.bucket, message.epoch, message.seq = released.bucket, released.epoch, released.seq
            message.client_session_id = released.client_session_id
            room -= 1
        while self.cancels and room:
            frame.cancels.add(request_id=self.cancels.popleft())
            room -= 1
        while self.acquires and room:
            wanted = self.acquires.pop(next(iter(self.acquires)))
            if wanted.place is not None:
                _take_place(wanted, *wanted.place, epoch)
            fill_acquire(frame.acquires.add(), wanted, now)
            room -= 1
        while self.binds and room:
            lease = next(iter(self.binds))
            frame.binds.add(lease=lease_message(lease), run_id=self.binds.pop(lease))
            room -= 1


def _take_place(wanted: Wanted, asked_of: int, ticket: tuple[int, int, bytes], epoch: int) -> None:
    """Nobody of this epoch was asked under that ticket, unless the limiter is still the one that granted it."""
    wanted.place = None
    if asked_of < epoch:
        wanted.ticket = ticket


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
        self.holdings = Holdings()
        self._say_hello = False
        self._serial = 0
        self._connection = 0
        self._heartbeat = 0
        self._heartbeats = Heartbeats()
        self._keep_alive = KeepAlive() if kind is SessionKind.CLIENT else None
        self._outbox = Outbox()
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
        hold: float = 0.0,
        instead_of: Lease | None = None,
    ) -> str:
        """Asks for a lease and returns the request's id, which no other request of the session has."""
        self._serial += 1
        request_id = f"#{self._serial}"
        wanted = Wanted(request_id, bucket, tokens, tenant, now + queue_timeout)
        wanted.hold = hold
        if instead_of is not None and (ticket := self.holdings.take_place(instead_of)) is not None:
            wanted.place = (instead_of.epoch, ticket)
        self.waiting[request_id] = self._outbox.acquires[request_id] = wanted
        return request_id

    def trace(self, request_id: str, traceparent: str) -> None:
        """Says whose wait it is, before it is sent."""
        self.waiting[request_id].traceparent = traceparent

    def abandon(self, request_id: str) -> None:
        """Stops waiting. A grant that is on its way will be given back."""
        wanted = self.waiting.pop(request_id, None)
        if wanted is not None and self._outbox.acquires.pop(request_id, None) is None:
            self._outbox.cancels.append(request_id)

    def release(self, lease: Lease, outcome: ReleaseOutcome) -> None:
        """Gives a lease back; nothing happens when it is not held or being bound here."""
        if self._outbox.binds.pop(lease, None) is not None:
            self._binding.pop(lease, None)
            return
        binding = lease in self._binding
        self._binding.pop(lease, None)
        replaceable = not self.welcomed or lease.epoch != self.epoch
        if self.holdings.remove(lease, with_place=not replaceable) or binding:
            self._outbox.releases.append((lease, outcome))

    def bind(self, lease: Lease, run_id: str) -> None:
        """Claims a lease for a run; answered by a `BindOutcome`, or by `disconnected()`."""
        if lease not in self._binding:
            self._binding[lease] = None
            self._outbox.binds[lease] = run_id

    # What the connection does

    def connected(self, now: float) -> None:
        """A stream is open; the next frame is the hello."""
        self._say_hello, self.welcomed = True, False
        self._connection += 1

    def disconnected(self) -> list[Lease]:
        """The stream has ended. Returns the leases whose binds will not be answered."""
        self._say_hello = self.welcomed = False
        self._heartbeats.closed()
        if self._keep_alive is not None:
            self._keep_alive.closed()
        self._outbox.disconnected()
        unanswered = list(self._binding)
        self._binding.clear()
        return unanswered

    def received(self, frame: pb.SessionResponse, now: float) -> list[News]:
        """Handles one frame from the limiter."""
        news: list[News] = []
        if frame.HasField("welcome"):
            self._welcome(frame.welcome, now, news)
        elif self._keep_alive is not None:
            self._keep_alive.heard(now)
        for queued in frame.queued:
            wanted = self.waiting.get(queued.request_id)
            if wanted is not None:
                wanted.ticket = place_of(queued.ticket)
        for grant in frame.grants:
            lease = Lease.of(grant.lease)
            wanted = self.waiting.get(grant.request_id)
            if wanted is None:
                self._outbox.releases.append((lease, ReleaseOutcome.UNUSED))
                continue
            del self.waiting[grant.request_id]
            place = place_of(grant.ticket) if grant.HasField("ticket") else wanted.ticket
            self.holdings.add(lease, wanted, place, grant.hold_proof, now)
            news.append(RequestGranted(grant.request_id, lease))
        for reject in frame.rejects:
            wanted = self.waiting.get(reject.request_id)
            if wanted is not None:
                del self.waiting[reject.request_id]
                reason = REJECT_REASONS.get(reject.reason, RejectReason.INVALID)
                news.append(RequestRefused(reject.request_id, reason, reject.message, reject.retry_after_s))
        for result in frame.bind_results:
            self._bound(result, news)
        for revoke in frame.revokes:
            lease = Lease.of(revoke.lease)
            if lease in self.holdings.held:
                self._lose(lease, revoke.reason, news)
        if frame.heartbeat_ack:
            self.valid_until = max(self.valid_until, self._heartbeats.acked(frame.heartbeat_ack))
        elif frame.HasField("welcome") and self.kind is SessionKind.EXECUTOR:
            self._heartbeats.due_at = now  # that of the hello came before its session was open
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
        if not (beat or self._outbox):
            return None
        frame = pb.SessionRequest()
        self._outbox.fill(frame, now, self.epoch)
        if beat:
            self._beat(frame, now)
        return frame

    def last_frame(self) -> pb.SessionRequest | None:
        """An executor's goodbye, once it has nothing else to say and nothing can be running; else None."""
        runs = self.holdings.held or self._binding
        ends = self.kind is SessionKind.EXECUTOR and self.welcomed and not runs
        return pb.SessionRequest(goodbye=True) if ends else None

    # What time does

    def next_deadline(self) -> float | None:
        """When a heartbeat is due, or the answer to one; None while there is none, as before the welcome. A client's
        may come earlier when it begins to wait for something."""
        if not self.welcomed:
            return None
        deadline = self._beat_at()
        if self._keep_alive is not None:
            deadline = min(deadline, self._keep_alive.give_up_at())
        return deadline if deadline < float("inf") else None

    def stalled(self, now: float) -> bool:
        """Says whether an acknowledgement is so late that the connection must be taken for dead."""
        if self._keep_alive is not None:
            return self.welcomed and self._keep_alive.dead(now)
        return self.welcomed and self._heartbeats.overdue(now)

    # Internal

    def _hello(self, now: float) -> pb.SessionRequest:
        # Whether a place can be taken is known after the welcome only.
        self._outbox.acquires = {
            name: wanted for name, wanted in self._outbox.acquires.items() if wanted.place is not None
        }
        hello = pb.Hello(
            session_id=self.session_id,
            kind=KIND_VALUES[self.kind],
            name=self.name,
            connection=self._connection,
            secret=self._secret,
        )
        self.holdings.list_in(hello, now)
        for wanted in self.waiting.values():
            if wanted.place is None:
                fill_acquire(hello.queued.add(), wanted, now)
        frame = pb.SessionRequest(hello=hello)
        if self.kind is SessionKind.EXECUTOR:
            self._beat(frame, now)
        return frame

    def _welcome(self, welcome: pb.Welcome, now: float, news: list[News]) -> None:
        self.welcomed, self.epoch = True, welcome.epoch
        if self.kind is SessionKind.EXECUTOR:
            self._heartbeats.opened(now, welcome.ttl_s)
        if self._keep_alive is not None:
            self._keep_alive.opened(now, welcome.quiet_s)
        for unknown in welcome.unknown:
            lease = Lease.of(unknown)
            if lease in self.holdings.held:
                self._lose(lease, "the limiter does not know it any more", news)

    def _bound(self, result: pb.BindResult, news: list[News]) -> None:
        lease = Lease.of(result.lease)
        status = BIND_STATUSES.get(result.status, BindStatus.UNKNOWN_LEASE)
        if lease not in self._binding:
            if status is BindStatus.BOUND and lease not in self.holdings.held:
                self._outbox.releases.append((lease, ReleaseOutcome.UNUSED))
            return
        del self._binding[lease]
        if status is BindStatus.BOUND:
            self.holdings.held[lease] = result.tokens or 1
        news.append(BindOutcome(lease, status, result.owner))

    def _lose(self, lease: Lease, reason: str, news: list[News]) -> None:
        """A client drops a lost lease; an executor counts it as held until its work is dead and released."""
        self.holdings.lose(lease)
        news.append(Lost(lease, reason))

    def _beat_at(self) -> float:
        if self._keep_alive is None:
            return self._heartbeats.due_at
        return self._keep_alive.beat_at() if self.waiting or self.holdings.held else float("inf")

    def _beat(self, frame: pb.SessionRequest, now: float) -> None:
        self._heartbeat += 1
        frame.heartbeat = self._heartbeat
        if self._keep_alive is not None:
            self._keep_alive.beat(now)
            return
        self._heartbeats.sent(self._heartbeat, now)
