"""Scenario of one seed: the number of participants, how fast they work, and the few faults they meet.

A subset of the faults finds more than all of them at once, and programs that outlast a session find what short ones
don't.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from limiter.core import BucketLimits, BucketOrder, Timing

EXTENDED_FROM = 100_000
"""Seeds from here on have more in their world; those below stay what they are when that changes."""


HELD = "held"
"""The bucket whose leases nobody binds."""
SESSIONS = 40
"""Sessions of one kind in the extended world: enough for all who take part, also after crashes."""


class Fault(StrEnum):
    """Fault that can befall the simulated cluster."""

    CLIENT_CRASH = "client-crash"
    """A client is killed, and started again."""
    CLIENT_LEAVE = "client-leave"
    """A client shuts down in order, whatever it waits for, and is started again."""
    CLIENT_PAUSE = "client-pause"
    """A client is stopped for a time and goes on with everything it had buffered."""
    EXECUTOR_CRASH = "executor-crash"
    """An executor is killed with its programs, and started again."""
    EXECUTOR_LEAVE = "executor-leave"
    """An executor kills its programs, shuts down in order, and is started again."""
    EXECUTOR_HICCUP = "executor-hiccup"
    """An executor and its watchdog are stopped for less than its promise allows."""
    EXECUTOR_STOP = "executor-stop"
    """An executor and its watchdog, not its programs, are stopped for long: the limit can't hold for those."""
    LIMITER_CRASH = "limiter-crash"
    """The limiter is killed, and started again."""
    LIMITER_LEAVE = "limiter-leave"
    """The limiter shuts down in order, and is started again."""
    LIMITER_PAUSE = "limiter-pause"
    """The limiter is stopped for a time and goes on with everything it had buffered."""
    STORE_PAUSE = "store-pause"
    """The store of the record of who leads does not answer for a time."""
    MACHINE_LOSS = "machine-loss"
    """A client, executor or limiter is lost with its machine, so that nobody is told, and started again."""
    RESET = "reset"
    """A connection breaks; what is on its way is lost."""
    PARTITION = "partition"
    """Two machines do not reach each other for a time."""
    ONE_WAY = "one-way"
    """One machine does not reach another for a time; the other way works."""
    SLOW_WAY = "slow-way"
    """Messages from one machine to another take up to seconds for a time."""
    FADING = "fading"
    """The answers to an executor get slow, and then the limiter does not hear it any more, for longer than its session
    lasts."""
    DEPOSED = "deposed"
    """The leader and the store do not reach each other, for longer than a lead lasts."""
    REVOKE = "revoke"
    """An operator takes a lease back, by force."""


_DECEIVING = (
    Fault.CLIENT_PAUSE,
    Fault.EXECUTOR_STOP,
    Fault.LIMITER_PAUSE,
    Fault.STORE_PAUSE,
    Fault.MACHINE_LOSS,
    Fault.PARTITION,
    Fault.ONE_WAY,
    Fault.SLOW_WAY,
    Fault.FADING,
    Fault.DEPOSED,
)
"""After these a connection can look alive for a while although nothing gets through."""


_NETWORK = (Fault.RESET, Fault.PARTITION, Fault.ONE_WAY, Fault.SLOW_WAY, Fault.FADING, Fault.MACHINE_LOSS)
_LEADERS = (
    Fault.LIMITER_CRASH,
    Fault.LIMITER_LEAVE,
    Fault.LIMITER_PAUSE,
    Fault.STORE_PAUSE,
    Fault.DEPOSED,
    Fault.PARTITION,
    Fault.RESET,
    Fault.EXECUTOR_CRASH,
)
_PROMPT = tuple(fault for fault in Fault if fault not in _DECEIVING)
_POOLS = (tuple(Fault), tuple(Fault), _NETWORK, _LEADERS, _PROMPT)
"""Pools that a seed draws its faults from: related ones meet more often than by chance."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Times are in seconds."""

    seed: int
    faults: tuple[Fault, ...]
    fault_every: float
    """Mean time between faults."""
    cut: float
    """Mean time for which a way is blocked."""
    busy: float
    """Until when clients ask and faults happen; then all becomes quiet."""
    clients: int
    executors: int
    limiters: int
    """Number of limiters that stand for election; 0: one leads without asking anybody."""
    lead: float
    """Duration of a lead without renewal."""
    buckets: tuple[BucketLimits, ...]
    heavy: bool
    """True if some requests need more than one token."""
    program: float
    """Mean time that programs run."""
    setup: float
    """Longest time that an executor takes between its bind and the program's start."""
    think: float
    """Mean time between requests of one of a client's tasks."""
    unavailable_after: float | None
    timing: Timing
    extended: bool = False
    """True if clients take the places of leases that a restart made void, and the fields below are drawn."""
    unary: int = 0
    """Clients that use unary calls."""
    tenants: int = 0
    """Tenants that requests name; 0: they name none."""
    operator: bool = False
    """True if somebody changes buckets all the time."""
    forgers: int = 0
    """Clients that claim what they were never given, and call anonymously without end."""

    @property
    def prompt(self) -> bool:
        """True if everyone who is connected is heard within a second."""
        return not any(fault in _DECEIVING for fault in self.faults)


def draw(seed: int, faults: Sequence[Fault] | None = None) -> Scenario:
    """The scenario of a seed; `faults` narrows down what is drawn from."""
    scenario = _draw(seed, faults)
    return _extend(scenario) if seed >= EXTENDED_FROM else scenario


def _extend(scenario: Scenario) -> Scenario:
    """More kinds of buckets, callers and requests in the same circumstances."""
    rng = random.Random(f"{scenario.seed}/extended")
    start_by = scenario.buckets[0].start_by
    paced = BucketLimits("paced", 4, start_by=start_by, rate_per_s=rng.choice([4.0, 10.0]), burst=rng.choice([1, 4]))
    shared = BucketLimits("shared", 3, start_by=start_by, order=BucketOrder.FAIR_BY_TENANT)
    more = rng.choice([(), (paced,), (shared,), (paced, shared)])
    unary, operator = rng.choice([0, 2, 4]), rng.random() < 0.4
    held = BucketLimits(HELD, 2, start_by=start_by, max_hold=12.0)
    holds = rng.random() < 0.6
    return replace(
        scenario,
        extended=True,
        buckets=(scenario.buckets[0], *more, *((held,) if holds else ())),
        unary=unary,
        tenants=3 if shared in more else 0,
        operator=operator,
        executors=rng.choice([0, scenario.executors]) if holds else scenario.executors,
        forgers=rng.choice([0, 1, 2]),
        timing=replace(scenario.timing, max_sessions=SESSIONS),
    )


def _draw(seed: int, faults: Sequence[Fault] | None) -> Scenario:
    rng = random.Random(f"{seed}/scenario")
    start_by = rng.choice([5.0, 5.0, 1.0])
    buckets = [BucketLimits("code", 4, start_by=start_by)]
    if rng.random() < 0.25:
        buckets.append(BucketLimits("heavy", 2, start_by=start_by))
    pool = rng.choice(_POOLS) if faults is None else faults
    chosen = rng.sample(pool, min(len(pool), rng.choice([1, 2, 2, 3, 4])))
    return Scenario(
        seed=seed,
        faults=tuple(chosen),
        fault_every=rng.choice([0.2, 0.5, 1.0, 2.5]),
        cut=rng.choice([0.3, 2.0, 8.0]),
        busy=40.0,
        clients=rng.choice([3, 10, 10]),
        executors=3,
        limiters=rng.choice([0, 1, 2, 2]),
        lead=rng.choice([2.0, 6.0]),
        buckets=tuple(buckets),
        heavy=rng.random() < 0.3,
        program=rng.choice([0.2, 1.0, 4.0, 8.0]),
        setup=rng.choice([0.3, 3.0]),
        think=rng.choice([0.2, 1.0]),
        unavailable_after=rng.choice([2.0, 10.0, 60.0]),
        timing=Timing(executor_ttl=rng.choice([2.0, 6.0]), grace=rng.choice([0.5, 1.5])),
    )
