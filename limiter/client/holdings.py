"""Leases that a session has in hand, and the places in the queue that they were granted from."""

from __future__ import annotations

from limiter.client.lease import Lease
from limiter.client.session_events import Place, Wanted, lease_message
from limiter.v1 import limiter_pb2 as pb

_MAX_PLACES = 10_000
"""Tickets of leases that are remembered: of those that nobody asks to replace too."""


class Holdings:
    """Leases in hand. Times are the caller's monotonic seconds."""

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
