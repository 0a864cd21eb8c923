"""Which executor takes the next call, as a pure state machine: answers and failures go in, a choice comes out.

The choice is the better of two that are drawn at random (power of two choices): with loads that are told late, always
taking the least loaded would send everybody to the same one at once. Load is what a server last said of itself, plus
what this client has sent it since, over the programs that it can run at once; where that is old or was never said, what
this client has under way there.

Invariants: a server that failed is left alone for a time that doubles with each failure in a row, unless all are; a
server that is not listed any more gets no new calls, and is forgotten when nothing is under way there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

LOAD_KEY = "fairbox-load"
"""Trailing metadata of an answer: `running=3 queued=0 capacity=8`."""
FRESH_S = 10.0
"""A load that was told longer ago says nothing: most programs end within seconds."""
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 10.0
"""Seconds that a server is left alone after its first failure in a row, and at most."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load that a server reports."""

    running: int
    queued: int
    capacity: int
    """Programs that it runs at once; from 1."""

    @classmethod
    @lru_cache(maxsize=256)  # servers say the same again and again
    def parse(cls, text: str) -> Load | None:
        """None: it is of a version that says something else."""
        try:
            fields = dict(part.split("=", 1) for part in text.split())
            load = cls(int(fields["running"]), int(fields["queued"]), int(fields["capacity"]))
        except (KeyError, ValueError):
            return None
        return load if load.running >= 0 and load.queued >= 0 and load.capacity >= 1 else None

    def __str__(self) -> str:
        return f"running={self.running} queued={self.queued} capacity={self.capacity}"


@dataclass(slots=True)
class ServerInfo:
    """One server."""

    address: str
    listed: bool
    in_flight: int = 0
    calls: int = 0
    """Since it was first listed."""
    failures: int = 0
    """In a row."""
    load: Load | None = None
    """Load that it last reported, at `told_at`, when `in_flight_then` calls were under way."""
    told_at: float = float("-inf")
    in_flight_then: int = 0
    paused_until: float = float("-inf")
    """It is left alone until then, unless all are."""

    def tell(self, load: Load, now: float) -> None:
        self.load, self.told_at, self.in_flight_then = load, now, self.in_flight

    def score(self, now: float) -> float:
        """Measure of how busy it is: 1 is every place taken."""
        if self.load is None:
            return float(self.in_flight)
        if now - self.told_at > FRESH_S:
            return self.in_flight / self.load.capacity
        since = self.in_flight - self.in_flight_then
        busy = max(self.in_flight, self.load.running + self.load.queued + since)
        return busy / self.load.capacity


class Balance:
    """The servers behind one name. Times are monotonic seconds; `random` gives numbers from 0 up to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._servers: dict[str, ServerInfo] = {}

    def update(self, addresses: Iterable[str]) -> list[str]:
        """The servers that there are now. Returns those that were forgotten."""
        now_listed = set(addresses)
        for address in now_listed:
            self._servers.setdefault(address, ServerInfo(address, listed=True))
        for address, server in self._servers.items():
            server.listed = address in now_listed
        return self._forget()

    def remember(self, addresses: Iterable[str]) -> None:
        """Servers that may be asked by their address though they are not listed."""
        for address in addresses:
            self._servers.setdefault(address, ServerInfo(address, listed=False))

    def pick(self, now: float, *, among: Collection[str] | None = None, avoid: Sequence[str] = ()) -> str | None:
        """The server for the next call. `among`: only these, where any is known; `avoid`: those that were tried, in
        order. Where all were, any but the last one is taken again. None: there is none."""
        candidates = self.listed if among is None else [address for address in self._servers if address in among]
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        untried = [each for each in candidates if each not in avoid]
        candidates = untried or [each for each in candidates if each != avoid[-1]]
        able = [each for each in candidates if self._servers[each].paused_until <= now]
        # Where all have failed lately, the one whose pause is over first.
        able = able or [min(candidates, key=lambda each: self._servers[each].paused_until)]
        first = able.pop(int(self._random() * len(able)))
        if not able:
            return first
        second = able[int(self._random() * len(able))]
        return min((first, second), key=lambda each: self._servers[each].score(now))

    def began(self, address: str) -> None:
        """A call is on its way."""
        server = self._servers[address]
        server.in_flight += 1
        server.calls += 1

    def stale(self, now: float) -> list[str]:
        """Servers that have told nothing for half as long as it counts: they are to be asked."""
        return [address for address, each in self._servers.items() if each.listed and now - each.told_at > FRESH_S / 2]

    def told(self, address: str, load: Load, now: float) -> None:
        """A server was asked how it is."""
        if address in self._servers:
            self._servers[address].tell(load, now)

    def ended(self, address: str, now: float, *, load: Load | None, failed: bool | None) -> None:
        """It has ended. `failed`: the server could not be reached, or takes nothing; None: nothing was heard of it.
        Calls that were under way together count as one failure."""
        server = self._servers[address]
        server.in_flight -= 1
        if load is not None:
            server.tell(load, now)
        if failed is False:
            server.failures = 0
        elif failed and server.paused_until <= now:
            server.paused_until = now + min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(server.failures, 30))
            server.failures += 1

    def __len__(self) -> int:
        return len(self._servers)

    def statistics(self) -> list[ServerInfo]:
        """All as they are now."""
        return [replace(server) for server in self._servers.values()]

    @property
    def listed(self) -> list[str]:
        """Addresses of the servers that there are now."""
        return [address for address, server in self._servers.items() if server.listed]

    def _forget(self) -> list[str]:
        gone = [address for address, each in self._servers.items() if not each.listed and not each.in_flight]
        for address in gone:
            del self._servers[address]
        return gone
