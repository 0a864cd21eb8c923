"""Disturbs a cluster by a seed: few kinds of faults in a run, because a mixture of all of them hides what each finds.

Faults come one after the other or beside each other; what a process or a link suffers ends before it suffers again.
At the end of `torment()` everything runs and every link is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.limiter.chaos.cluster import Cluster

_PAUSE_S = 0.4
"""Mean time between the beginnings of two faults."""
_AT_ONCE = 2
_KINDS_A_RUN = (2, 4)
_HICCUPS_S = (0.05, 0.3, 1.0)
_SILENCES = (1.2, 1.7)
"""Durations of a silence that ends sessions, in multiples of an executor's ttl."""
_REST_S = 2.5
"""Time for which a killed process is left alone afterwards: it needs about a second to start, and should then get
something done."""
_DELAYS_S = (0.01, 0.05, 0.3)

Fault = Callable[["Nemesis", str, float], Awaitable[None]]


class Nemesis:
    """One run's faults. `log` says what was done, with times in seconds since the start."""

    def __init__(self, cluster: Cluster, seed: int, kinds: tuple[str, ...] = ()) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"nemesis {seed}")
        count = self._rng.randint(*_KINDS_A_RUN)
        possible = [kind for kind, (victims, _) in KINDS.items() if victims(cluster)]
        self.kinds = kinds or tuple(sorted(self._rng.sample(sorted(possible), count)))
        self._durations = (*_HICCUPS_S, *(times * cluster.world.ttl_s for times in _SILENCES))
        self._began = time.monotonic()
        self._busy: set[str] = set()
        self.log: list[str] = []

    async def torment(self, seconds: float) -> None:
        """Disturbs for that long, then lets what it has begun end."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as faults:
            while time.monotonic() < end:
                await asyncio.sleep(self._rng.expovariate(1 / _PAUSE_S))
                kind = self._rng.choice(self.kinds)
                victims, fault = KINDS[kind]
                free = [name for name in victims(self._cluster) if self._may_suffer(name)]
                victim = self._rng.choice(free) if free else ""
                duration = self._rng.choice(self._durations)
                if victim and len(self._busy) < _AT_ONCE:
                    self._busy.add(victim)
                    self.log.append(f"{time.monotonic() - self._began:6.2f} {kind} {victim} {duration:.2f} s")
                    faults.create_task(self._do(fault, victim, duration))

    def _may_suffer(self, victim: str) -> bool:
        """One at a time, and one executor after the other: what one of them does wrong shows when another one works."""
        others = self._cluster.executors if victim in self._cluster.executors else [victim]
        return self._busy.isdisjoint(others)

    async def _do(self, fault: Fault, victim: str, duration: float) -> None:
        try:
            await fault(self, victim, duration)
        finally:
            self._busy.discard(victim)

    # Faults

    async def kill(self, victim: str, duration: float) -> None:
        """SIGKILL, and another life soon: a limiter shall be back before the programs of its executors have to end."""
        await self._cluster.kill(victim)
        await asyncio.sleep(duration / 10)
        await self._cluster.start(victim)
        await asyncio.sleep(_REST_S)

    async def end(self, victim: str, duration: float) -> None:
        """SIGTERM, and another life soon."""
        await self._cluster.kill(victim, signal.SIGTERM)
        await asyncio.sleep(duration / 10)
        await self._cluster.start(victim)
        await asyncio.sleep(_REST_S)

    async def fill(self, victim: str, duration: float) -> None:
        """No room is left on its disk; half of the time it is killed then, and can't start before there is room."""
        ballast = self._cluster.disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        if self._rng.random() < 0.5:
            await self._cluster.kill(victim)
            await self._cluster.start(victim)
        await asyncio.sleep(duration)
        ballast.unlink()
        await asyncio.sleep(_REST_S)
        await self._cluster.revive(victim)

    async def lose(self, victim: str, duration: float) -> None:
        """Open connections carry nothing any more, and neither side learns of it."""
        self._cluster.proxies[victim].lose()
        await asyncio.sleep(duration)

    async def pause(self, victim: str, duration: float) -> None:
        """SIGSTOP and SIGCONT. Programs of an executor are children of a process that goes on."""
        self._cluster.pause(victim)
        await asyncio.sleep(duration)
        self._cluster.resume(victim)

    async def stall(self, victim: str, duration: float) -> None:
        """Nothing passes either way."""
        proxy = self._cluster.proxies[victim]
        proxy.up.open.clear()
        proxy.down.open.clear()
        await asyncio.sleep(duration)
        proxy.heal()

    async def cut(self, victim: str, duration: float) -> None:
        """Nothing passes one way; ends with a reset half of the time."""
        proxy = self._cluster.proxies[victim]
        self._rng.choice((proxy.up, proxy.down)).open.clear()
        await asyncio.sleep(duration)
        if self._rng.random() < 0.5:
            proxy.reset()
        proxy.heal()

    async def slow(self, victim: str, duration: float) -> None:
        """Everything is late."""
        proxy = self._cluster.proxies[victim]
        proxy.up.delay_s, proxy.down.delay_s = self._rng.choice(_DELAYS_S), self._rng.choice(_DELAYS_S)
        await asyncio.sleep(duration)
        proxy.heal()

    async def reset(self, victim: str, duration: float) -> None:
        """Connections end, and what was on its way is lost."""
        self._cluster.proxies[victim].reset()
        await asyncio.sleep(0)


def _limiter(cluster: Cluster) -> list[str]:
    return ["limiter"]


def _disk(cluster: Cluster) -> list[str]:
    return ["limiter"] if cluster.small else []


def _clients(cluster: Cluster) -> list[str]:
    return cluster.clients


def _executors(cluster: Cluster) -> list[str]:
    return cluster.executors


def _links(cluster: Cluster) -> list[str]:
    return list(cluster.proxies)


KINDS: dict[str, tuple[Callable[[Cluster], list[str]], Fault]] = {
    "kill limiter": (_limiter, Nemesis.kill),
    "end limiter": (_limiter, Nemesis.end),
    "pause limiter": (_limiter, Nemesis.pause),
    "full disk": (_disk, Nemesis.fill),
    "kill client": (_clients, Nemesis.kill),
    "pause client": (_clients, Nemesis.pause),
    "kill executor": (_executors, Nemesis.kill),
    "pause executor": (_executors, Nemesis.pause),
    "stall client": (_clients, Nemesis.stall),
    "stall executor": (_executors, Nemesis.stall),
    "cut client": (_clients, Nemesis.cut),
    "cut executor": (_executors, Nemesis.cut),
    "slow": (_links, Nemesis.slow),
    "reset": (_links, Nemesis.reset),
    "half-open": (_links, Nemesis.lose),
}
"""Possible victims of each fault, and the fault itself."""
