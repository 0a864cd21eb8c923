"""Placement of turns on replicas: a pure state machine, with time as an argument.

Invariants: a turn goes only to a replica that is ready; turns of one trajectory stay on one replica, whose cache has
their prefix, unless it is down or has far more to do than another; every turn that was placed is
counted until it has ended; a replica that is down is probed with growing pauses until it answers, and one that is ready
is probed from time to time. It knows no engine: events in, decisions out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

BALANCE_ABS = 4
"""A trajectory is moved when its replica has at least this many turns more than the one with the fewest ..."""
BALANCE_REL = 1.5
"""... and more than this many times as many: moving costs the computation of its whole context."""
PROBE_EVERY_S = 5.0
"""Between probes of a replica that is ready."""
PROBE_BACKOFF_S = 0.5
"""Before the second probe of one that is down; doubled each time. The first comes at once."""
PROBE_BACKOFF_MAX_S = 15.0
PROBES_TO_LOSE = 3
"""Probes that must fail in a row until the turns that still run at a replica are given up."""
MAX_STICKY = 100_000
"""Trajectories that are remembered; the one unused for longest is forgotten first."""


@dataclass(slots=True)
class ReplicaView:
    """One replica as it is: the balancer alone changes it."""

    name: str
    probe_at: float
    up: bool = False
    """Says whether it takes turns: not until a probe succeeds, and not after a turn or a probe failed."""
    load: int = 0
    """Turns that were placed on it and have not ended."""
    placed: int = 0
    """Turns that were ever placed on it."""
    failed_probes: int = 0
    """In a row."""
    probing: bool = False
    last_error: str = ""


class Balancer:
    """`names` start as down, with a probe due at `now`."""

    def __init__(self, names: Iterable[str], *, now: float) -> None:
        self._replicas = {name: ReplicaView(name, probe_at=now) for name in names}
        self._sticky: OrderedDict[str, str] = OrderedDict()
        self._away_since: float | None = now

    def choose(self, trajectory_id: str, avoid: Collection[str] = ()) -> str | None:
        """Places a turn, which `ended` must be told of; None when no replica is ready.

        avoid: replicas that failed this turn, which get it only where there is no other.
        """
        ready = {name: each for name, each in self._replicas.items() if each.up}
        if not ready:
            return None
        ready = {name: each for name, each in ready.items() if name not in avoid} or ready
        least = min(ready, key=lambda name: (ready[name].load, ready[name].placed))
        before = self._sticky.get(trajectory_id)
        chosen = before if before in ready and not self._unbalanced(ready[before].load, ready[least].load) else least
        assert chosen is not None
        self._sticky[trajectory_id] = chosen
        self._sticky.move_to_end(trajectory_id)
        while len(self._sticky) > MAX_STICKY:
            self._sticky.popitem(last=False)
        ready[chosen].load += 1
        ready[chosen].placed += 1
        return chosen

    def ended(self, name: str) -> None:
        """A turn that was placed is no longer there, however it ended."""
        self._replicas[name].load -= 1

    def failed(self, name: str, error: str, *, now: float) -> None:
        """A turn failed at a replica: it takes no more until a probe, due at once, succeeds."""
        replica = self._replicas[name]
        replica.last_error = error
        if replica.up:
            replica.up = False
            replica.probe_at = now
            self._note_away(now)

    def due(self, now: float) -> list[str]:
        """Replicas to probe now; each is not due again until `probed` is told of it."""
        names = [name for name, each in self._replicas.items() if not each.probing and each.probe_at <= now]
        for name in names:
            self._replicas[name].probing = True
        return names

    def probed(self, name: str, error: str | None, *, now: float) -> bool:
        """A probe has ended, with an error or None. True when the turns that still run there are to be given up."""
        replica = self._replicas[name]
        replica.probing = False
        if error is None:
            replica.up, self._away_since = True, None
            replica.failed_probes = 0
            replica.probe_at = now + PROBE_EVERY_S
            return False
        replica.failed_probes += 1
        replica.last_error = error
        backoff = PROBE_BACKOFF_S * 2 ** min(replica.failed_probes - 1, 30)
        replica.probe_at = now + min(backoff, PROBE_BACKOFF_MAX_S)
        replica.up = False
        self._note_away(now)
        return replica.failed_probes == PROBES_TO_LOSE

    def away_s(self, now: float) -> float:
        """Seconds for which no replica has been ready; 0 where one is."""
        return 0.0 if self._away_since is None else now - self._away_since

    def next_probe_at(self) -> float | None:
        """When `due` will have something to say; None while every probe is under way."""
        return min((each.probe_at for each in self._replicas.values() if not each.probing), default=None)

    def views(self) -> tuple[ReplicaView, ...]:
        return tuple(self._replicas.values())

    def _note_away(self, now: float) -> None:
        if self._away_since is None and not any(each.up for each in self._replicas.values()):
            self._away_since = now

    def _unbalanced(self, load: int, least: int) -> bool:
        return load - least >= BALANCE_ABS and load > BALANCE_REL * least
