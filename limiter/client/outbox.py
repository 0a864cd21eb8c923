"""Things that a session has yet to say: releases, cancellations, requests and binds, in the order in which they leave.

Invariant: what is withdrawn before it was sent is not sent at all.
"""

from __future__ import annotations

from collections import deque

from limiter.client.lease import Lease
from limiter.client.session_events import Wanted, fill_acquire, lease_message
from limiter.core.reasons import ReleaseOutcome
from limiter.v1 import limiter_pb2 as pb
from limiter.wire import OUTCOME_VALUES

MAX_FRAME_ITEMS = 512
"""Items in one frame."""


class Outbox:
    """Collects while a frame is on its way, and fills the next one."""

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
        """Moves up to MAX_FRAME_ITEMS items into a frame. `epoch`: that of the limiter that gets it."""
        room = MAX_FRAME_ITEMS
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
