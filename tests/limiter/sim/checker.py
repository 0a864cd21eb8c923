"""Rules that must hold in every history, judged from what really ran and from what the limiter decided, in true time.

- Programs that run at one instant never need more tokens than their bucket has, over all executors and leaders. If
  somebody changes the bucket, its limit is the highest since the oldest of them can have been granted its lease.
- Grants leave a bucket in ticket order among connected clients; a request at the head that fits is granted at once.
- Every request ends, within its timeout plus the margin of its client.
- When all is quiet nothing is held or waited for, no task is left, and no task has failed.

An executor that was stopped for longer than its promise allows is excused until its programs are dead: the limit cannot
hold for it, as docs/explanation/limiter.md says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.limiter.sim.loop import Process, SimLoop
from tests.limiter.sim.trace import Trace

_START_WITHIN_S = 30.0
"""Between the grant of a lease and the start of its program: `start_by`, the bind and the set-up of the sandbox."""
_MOST_REPORTED = 5
"""Violations of one kind beyond this are only counted."""


@dataclass(eq=False, slots=True)
class Program:
    """User code that runs under a lease."""

    name: str
    executor: Process
    bucket: str
    tokens: int
    started: float = 0.0
    excused: bool = False
    held: tuple[int, int] | None = None
    """The lease, where a client holds it without a bind."""
    reported: bool = True
    """With `held`: whether somebody is left who tells a new limiter of it."""


class Checker:
    """Collects violations; each is a kind and a sentence."""

    def __init__(self, loop: SimLoop, trace: Trace, limits: dict[str, int]) -> None:
        self.violations: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        """Number of times that each tried thing came about, so that a simulation of nothing shows."""
        self.running: dict[Program, None] = {}
        self._loop = loop
        self._trace = trace
        self._limits = {name: [(0.0, limit)] for name, limit in limits.items()}
        """By bucket: since when which limit is in force."""
        self._reported: Counter[str] = Counter()
        self._excused: dict[Process, None] = {}
        self.granted_at: dict[tuple[int, int], float] = {}
        """Time of the grant of each lease with a hold time, so that clients can keep to it however late they hear of
        it."""
        self.forgers: dict[str, str] = {}
        """Names of those who claim what they do not have, by the sessions that are theirs."""

    def count(self, what: str) -> None:
        """Something worth counting has happened."""
        self.counts[what] += 1
        self._trace.event(what)

    def violated(self, kind: str, text: str) -> None:
        """Something happened that must not."""
        self._reported[kind] += 1
        self._trace.event(f"VIOLATION {kind}: {text}")
        if self._reported[kind] <= _MOST_REPORTED:
            self.violations.append((kind, f"at {self._loop.true_time:.3f} s: {text}"))

    def started(self, program: Program) -> None:
        """User code runs from now on."""
        program.excused = program.executor in self._excused
        self.running[program] = None
        self.counts["programs"] += 1
        self._trace.event(f"start {program.name} on {program.executor} ({program.tokens} of {program.bucket})")
        program.started = self._loop.true_time
        together = [each for each in self.running if each.bucket == program.bucket and not each.excused]
        tokens, limit = sum(each.tokens for each in together), self._limit(program.bucket, together)
        if tokens > limit:
            names = ", ".join(f"{each.name} on {each.executor}" for each in together)
            self.violated("limit", f"{tokens} tokens of {program.bucket} run, {limit} may: {names}")

    def configured(self, bucket: str, limit: int) -> None:
        """A bucket has that limit from now on."""
        history = self._limits.setdefault(bucket, [])
        if not history or history[-1][1] != limit:
            history.append((self._loop.true_time, limit))

    def _limit(self, bucket: str, together: list[Program]) -> int:
        """The highest limit since the oldest of these programs can have been granted its lease."""
        since = min((each.started for each in together), default=0.0) - _START_WITHIN_S
        history = self._limits[bucket]
        ends = [*(began for began, _ in history[1:]), float("inf")]
        return max(limit for (_, limit), end in zip(history, ends, strict=True) if end >= since)

    def stopped(self, program: Program) -> None:
        """User code is dead. Idempotent."""
        if program in self.running:
            del self.running[program]
            self._trace.event(f"stop {program.name} on {program.executor}")

    def excuse_unreported(self, counted: Callable[[tuple[int, int]], bool] | None = None) -> None:
        """A limiter has begun to lead, and can't know what nobody tells it of. `counted`: it has heard everybody that
        came in time, and what it does not count by now it never will."""
        for program in self.running:
            if program.held is not None and not (counted(program.held) if counted else program.reported):
                program.excused = True

    def excuse(self, executor: Process) -> None:
        """The executor can't keep its promise from now on; what it runs is not judged any more."""
        self._excused[executor] = None
        for program in self.running:
            if program.executor is executor:
                program.excused = True

    def judge_again(self, executor: Process) -> None:
        """The executor has killed what it had to; what it starts from now on is judged."""
        self._excused.pop(executor, None)
