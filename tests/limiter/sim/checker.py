"""What must hold in every history, judged from what really ran and from what the limiter decided, in true time.

- Programs that run at one instant never need more tokens than their bucket has, over all executors and leaders.
- Grants leave a bucket in ticket order among those that are connected; what fits at the head is granted at once.
- Every request ends, within its timeout and what its client adds to it.
- When all is quiet nothing is held or waited for, no task is left, and no task has failed.

An executor that was stopped for longer than its promise allows is excused until its programs are dead: the limit cannot
hold for it, and docs/limiter.md says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.limiter.sim.loop import Process, SimLoop
from tests.limiter.sim.trace import Trace

__all__ = ["Checker", "Program"]

_MOST_REPORTED = 5
"""Violations of one kind beyond this are only counted."""


@dataclass(eq=False, slots=True)
class Program:
    """User code that runs under a lease."""

    name: str
    executor: Process
    bucket: str
    tokens: int
    excused: bool = False


class Checker:
    """Collects violations; each is a kind and a sentence."""

    def __init__(self, loop: SimLoop, trace: Trace, limits: dict[str, int]) -> None:
        self.violations: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        """How often what was tried came about, so that a simulation of nothing shows."""
        self.running: dict[Program, None] = {}
        self._loop = loop
        self._trace = trace
        self._limits = limits
        self._reported: Counter[str] = Counter()
        self._excused: dict[Process, None] = {}

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
        together = [each for each in self.running if each.bucket == program.bucket and not each.excused]
        tokens = sum(each.tokens for each in together)
        if tokens > self._limits[program.bucket]:
            names = ", ".join(f"{each.name} on {each.executor}" for each in together)
            self.violated(
                "limit", f"{tokens} tokens of {program.bucket} run, {self._limits[program.bucket]} may: {names}"
            )

    def stopped(self, program: Program) -> None:
        """User code is dead. Idempotent."""
        if program in self.running:
            del self.running[program]
            self._trace.event(f"stop {program.name} on {program.executor}")

    def excuse(self, executor: Process) -> None:
        """The executor can't keep its promise from now on; what it runs is not judged any more."""
        self._excused[executor] = None
        for program in self.running:
            if program.executor is executor:
                program.excused = True

    def judge_again(self, executor: Process) -> None:
        """The executor has killed what it had to; what it starts from now on is judged."""
        self._excused.pop(executor, None)
