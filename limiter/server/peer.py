"""The server's end of one session stream, whatever carries it: frames in, coalesced frames out.

Invariants: the first frame out holds `welcome`, or acknowledges the heartbeat of an executor whose hello waits to be
read; hellos of one kind are read one after the other, in slices, so that heartbeats of the others pass them; while one
frame is being written everything else is collected into the next, at most 512 items each; what waits to be written is
bounded, and a peer that does not read is cut off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from opentelemetry.trace import Span

from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors
from fairbox.net.fields import IDENTIFIER
from fairbox.security import ANYONE, Identity
from fairbox.telemetry import tracing
from fairbox.v1.common_pb2 import Lease
from limiter.core import SLICE, LeaseId, ReleaseOutcome, SessionKind
from limiter.core.effects import (
    BindAnswered,
    Effect,
    Granted,
    HeartbeatAcked,
    Queued,
    Refused,
    Rejected,
    Revoked,
    SessionEnded,
    Welcomed,
)
from limiter.core.events import Bind, Cancel, Event, Goodbye, Heartbeat, Hello, Reading, Release, Returning
from limiter.server.access import check_kind
from limiter.server.claims import Claims
from limiter.server.convert import acquire_event, check_hello, hello_event, lease_message
from limiter.server.core_runner import CoreRunner
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import BIND_STATUS_VALUES, OUTCOMES, REJECT_REASON_VALUES

# The waits of one stream that are traced: each becomes the span `limiter.queue` below that of whoever waits.
#
# Made only where traces are exported; a request that brings no trace context costs a look at its field.


_MOST = 100_000
"""Waits that are remembered: a queue of the usual bound. What is beyond is not traced."""


@dataclass(frozen=True, slots=True)
class _Wait:
    parent: Span
    began: float
    bucket: str
    tenant: str


class TracedWaits:
    """Waits of one `PeerStream` that are traced."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    def begin(self, acquires: Iterable[pb.Acquire]) -> None:
        """Notes those that bring a trace context. One that waits already is not noted anew."""
        for acquire in acquires:
            if not acquire.traceparent or acquire.request_id in self._waits or len(self._waits) >= _MOST:
                continue
            parent = tracing.parse(acquire.traceparent)
            if parent.get_span_context().trace_flags.sampled:
                wait = _Wait(parent, self._clock.now(), acquire.bucket, acquire.tenant)
                self._waits[acquire.request_id] = wait

    def end(self, request_id: str, outcome: str) -> None:
        """A wait is over. Nothing happens for one that was not noted."""
        wait = self._waits.pop(request_id, None)
        if wait is not None:
            tracing.record(
                "limiter.queue",
                {"request_id": request_id, "bucket": wait.bucket, "tenant": wait.tenant, "outcome": outcome},
                seconds=self._clock.now() - wait.began,
                parent=wait.parent,
                why="" if outcome in ("granted", "cancelled") else outcome,
            )

    def close(self) -> None:
        """The stream has ended; whoever still waits asks again over the next one."""
        for request_id in list(self._waits):
            self.end(request_id, "disconnected")


_Item = TypeVar("_Item")
MAX_FRAME_ITEMS = 512
"""Items in one frame: keeps frames far below gRPC's message limit and the peer's work per frame short."""
_QUIET_S = 1.5
"""A client that has waited for so long in silence asks whether it is still heard."""
_HEARTBEATS_PER_S = 500
"""Heartbeats of all clients together, about: a tenth of a processor."""
_MAX_FRAMES = 512
"""Frames that wait to be written: a peer with its whole share of the queue granted at once still fits."""


class PeerStream:
    """One stream of one session. `open()` with the first frame, `receive()` the others, write what `next_frame()`
    returns until None, then `end()`."""

    def __init__(self, runner: CoreRunner, identity: Identity = ANYONE) -> None:
        """`identity` is that of the peer; it is looked at once a stream, and once an acquire for its tenant."""
        self._runner = runner
        self._identity = identity
        self._session_id = ""
        self._executor = False
        self._binding: dict[LeaseId, Lease] = {}
        """Leases that the frame at hand binds."""
        self._frames: deque[pb.SessionResponse] = deque()
        self._room = 0
        self._ready = asyncio.Event()
        self._closing = False
        self._waits = TracedWaits(runner.clock) if tracing.enabled() else None

    # In

    async def open(self, frame: pb.SessionRequest) -> None:
        """Handles the first frame. FieldErrors or RoleRefused when the stream can't go on."""
        if not frame.HasField("hello"):
            raise FieldErrors([FieldError("hello", "is not set, must be in the first frame")])
        message, runner = frame.hello, self._runner
        kind = check_hello(message)
        check_kind(kind, self._identity)
        if kind is SessionKind.EXECUTOR and frame.heartbeat:
            # Its session has no stream yet, so the runner can't pass on the answer, if there is one.
            for effect in runner.apply(Returning(message.session_id, frame.heartbeat)):
                self.deliver(effect)
        waited_for = kind is SessionKind.CLIENT and runner.core.recovering
        if waited_for:
            runner.apply(Reading(1))
        try:
            async with runner.reading[kind]:
                await self._say_hello(frame, *await hello_event(message, self._identity, self._claims()))
        finally:
            if waited_for:
                runner.apply(Reading(-1))

    async def _say_hello(self, frame: pb.SessionRequest, hello: Hello, rejected: list[Rejected]) -> None:
        if self._runner.closed:
            self.close("the limiter is shutting down", 1.0)
        if self._closing:
            return
        self._session_id, self._executor = hello.session_id, hello.kind is SessionKind.EXECUTOR
        if self._waits is not None:
            async for part in _slices(frame.hello.queued):
                self._waits.begin(part)
        self._runner.open(hello, self)
        await self._runner.read(hello.session_id)
        async for refusals in _slices(rejected):
            for each in refusals:
                self.deliver(each)
        await self._handle(frame)

    async def receive(self, frame: pb.SessionRequest) -> None:
        """Handles a later frame. FieldErrors when the stream can't go on."""
        if frame.HasField("hello"):
            raise FieldErrors([FieldError("hello", "is set, which only the first frame may have")])
        await self._handle(frame)

    async def _handle(self, frame: pb.SessionRequest) -> None:
        """Does what it asks for, in order; of a long frame in slices, so that others have their turn between them."""
        if frame.binds and not self._executor:
            raise FieldErrors([FieldError("binds", "has entries, which only an executor's session may send")])
        events = self._events(frame)
        if len(frame.releases) + len(frame.cancels) + len(frame.acquires) + len(frame.binds) <= SLICE:
            if not self._closing:
                self._runner.apply_all(events)
        else:
            while not self._closing and (part := list(islice(events, SLICE))):
                self._runner.apply_all(part)
                await asyncio.sleep(0)
        self._binding.clear()

    def _events(self, frame: pb.SessionRequest) -> Iterator[Event]:
        """Events that the frame asks for, in order. Rejects on the way what can't be asked for."""
        session_id = self._session_id
        for release in frame.releases:
            lease = release.lease
            outcome = OUTCOMES.get(release.outcome, ReleaseOutcome.OK)
            yield Release(session_id, LeaseId(lease.epoch, lease.seq), outcome)
        for cancel in frame.cancels:
            yield Cancel(session_id, cancel.request_id)
            if self._waits is not None:
                self._waits.end(cancel.request_id, "cancelled")
        if self._waits is not None:
            self._waits.begin(frame.acquires)
        for acquire in frame.acquires:
            claims = self._claims() if acquire.HasField("ticket") else None
            event = acquire_event(session_id, acquire, self._identity, claims)
            if isinstance(event, Rejected):
                self.deliver(event)
            else:
                yield event
        for bind in frame.binds:
            run_id = bind.run_id if IDENTIFIER.fullmatch(bind.run_id) else ""
            lease_id = LeaseId(bind.lease.epoch, bind.lease.seq)
            self._binding[lease_id] = bind.lease
            yield Bind(session_id, lease_id, bind.lease.client_session_id, run_id)
        if frame.heartbeat:
            yield Heartbeat(session_id, frame.heartbeat)
        if frame.goodbye:
            yield Goodbye(session_id)

    def _claims(self) -> Claims | None:
        """The judge of claims, while they count; else None."""
        return self._runner.claims if self._runner.core.heeds_claims(self._runner.clock.now()) else None

    def end(self) -> None:
        """The stream has ended, for whatever reason. Idempotent."""
        self._closing = True
        self._ready.set()
        if self._waits is not None:
            self._waits.close()
        if self._session_id:
            session_id, self._session_id = self._session_id, ""
            self._runner.detach(session_id, self)

    # Out

    async def next_frame(self) -> pb.SessionResponse | None:
        """The next frame to write, or None when the stream has to end."""
        await self._ready.wait()
        if not self._frames:
            return None
        frame = self._frames.popleft()
        if not self._frames:
            self._room = 0
            if not self._closing:
                self._ready.clear()
        return frame

    def finish(self) -> None:
        """The peer sends nothing more: end after what waits to be written."""
        self._closing = True
        self._ready.set()

    def close(self, reason: str, retry_after: float) -> None:
        """Tells the peer to go away, then ends."""
        if not self._closing:
            self._frame().go_away.CopyFrom(pb.GoAway(reason=reason, retry_after_s=retry_after))
            self.finish()

    def deliver(self, effect: Effect) -> None:
        """Adds one effect to the frame that is being collected."""
        if self._closing:
            return
        # Setting fields is cheaper than naming them in a constructor, and these two are most of what is said.
        if isinstance(effect, Granted):
            grant = self._frame().grants.add()
            grant.request_id = effect.request_id
            grant.start_by_s = effect.start_by
            lease = grant.lease
            lease.bucket = effect.bucket
            lease.epoch, lease.seq = effect.lease
            lease.client_session_id = effect.session_id
            if not effect.waited:  # otherwise `queued` has told it
                self._tell_ticket(grant.ticket, effect)
            if effect.held:
                grant.hold_proof = self._runner.claims.hold_proof(
                    effect.session_id, effect.lease, effect.bucket, effect.tokens, self._identity.tenant
                )
            if self._waits is not None:
                self._waits.end(effect.request_id, "granted")
        elif isinstance(effect, Queued):
            queued = self._frame().queued.add()
            queued.request_id = effect.request_id
            self._tell_ticket(queued.ticket, effect)
        elif isinstance(effect, BindAnswered):
            bound = self._binding[effect.lease]
            self._frame().bind_results.add(
                lease=bound, status=BIND_STATUS_VALUES[effect.status], owner=effect.owner, tokens=effect.tokens
            )
        elif isinstance(effect, Rejected):
            self._frame().rejects.add(
                request_id=effect.request_id,
                reason=REJECT_REASON_VALUES[effect.reason],
                message=effect.message,
                retry_after_s=effect.retry_after,
            )
            if self._waits is not None:
                self._waits.end(effect.request_id, effect.reason)
        elif isinstance(effect, Revoked):
            self._frame().revokes.add(
                lease=lease_message(effect.lease, effect.bucket, effect.client_session_id), reason=effect.reason
            )
        elif isinstance(effect, HeartbeatAcked):
            self._frame().heartbeat_ack = effect.number
        else:
            self._deliver_session(effect)

    def _tell_ticket(self, ticket: pb.Ticket, effect: Granted | Queued) -> None:
        ticket.epoch, ticket.seq = effect.ticket
        ticket.proof = self._runner.claims.ticket_proof(effect.session_id, effect.ticket, effect.bucket, effect.tenant)

    def _deliver_session(self, effect: Effect) -> None:
        if isinstance(effect, Welcomed):
            welcome = pb.Welcome(
                epoch=self._runner.core.epoch,
                ttl_s=self._runner.core.timing.executor_ttl,
                recovering=self._runner.core.recovering,
                unknown=[lease_message(each.lease, each.bucket, each.client_session_id) for each in effect.unknown],
                quiet_s=quiet_for(self._runner.core.open_sessions),
            )
            self._frame().welcome.CopyFrom(welcome)
        elif isinstance(effect, Refused):
            self.close(effect.message, effect.retry_after)
        elif isinstance(effect, SessionEnded):
            self.close(effect.reason, 0.0)

    def _frame(self) -> pb.SessionResponse:
        """The frame to add one item to."""
        if self._room == 0:
            if len(self._frames) >= _MAX_FRAMES:
                self.finish()  # the peer does not read; it will find a closed stream
            self._frames.append(pb.SessionResponse())
            self._room = MAX_FRAME_ITEMS
            self._ready.set()
        self._room -= 1
        return self._frames[-1]


async def _slices(items: Sequence[_Item]) -> AsyncIterator[Sequence[_Item]]:
    """As many at once as one step of a hello has, with a turn for others between them."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]
        await asyncio.sleep(0)


def quiet_for(sessions: int) -> float:
    """Seconds that a client waits in silence before it sends a heartbeat, so that all together don't send many."""
    return max(_QUIET_S, sessions / _HEARTBEATS_PER_S)
