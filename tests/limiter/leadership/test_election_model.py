"""The election over random histories: clocks 1 % off, calls that are slow, lost or done late, candidates that sleep,
die, come back or resign. Never two leaders, epochs that grow, no roster lost, and somebody leads when all is quiet."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from limiter.leadership import Election, LeadershipLost, Member, Record
from limiter.leadership.election import Look, Rest, Role, Write

DURATION = 6.0
TIMEOUT = 1.2
FAULTS_UNTIL = 120.0
QUIET_UNTIL = 160.0


@dataclass(eq=False)
class Candidate:
    """A process with its own clock."""

    election: Election
    rate: float
    offset: float
    asleep_until: float = 0.0
    call: int = 0
    """Number of its last call; answers to earlier ones are too late."""
    dead: bool = False
    won: bool = False
    stored: int = 0
    """Number of the roster that it gave last."""


class History:
    """One history: events in true time, decided by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.record: Record | None = None
        self.writes = 0
        self.epochs: list[int] = []
        self.kept = 0
        """Number of the newest roster that its leader knows to be kept."""
        self.rosters = 0
        self.names = 0
        self.slow = self.random.choice([0.0, 0.05, 0.3])
        self.nodes = [self.candidate("") for _ in range(self.random.choice([2, 2, 3]))]

    def run(self) -> None:
        self.at(self.random.expovariate(0.2), self.fault)
        while self.events:
            self.time, _, event = heapq.heappop(self.events)
            if self.time > QUIET_UNTIL:
                break
            event()
            self.check()
        assert [node for node in self.nodes if self.leads(node)], "all is quiet, and nobody leads"

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.time + seconds, self.count, event))

    def now(self, node: Candidate) -> float:
        return node.offset + self.time * node.rate

    def leads(self, node: Candidate) -> bool:
        return not node.dead and self.now(node) < node.election.lead_until

    def candidate(self, identity: str) -> Candidate:
        self.names += 1
        election = Election(identity or f"n{self.names}", duration=DURATION)
        node = Candidate(election, self.random.uniform(0.99, 1.01), self.random.uniform(0, 1000))
        self.at(self.random.uniform(0, 1), lambda: self.act(node))
        return node

    # What a candidate does

    def act(self, node: Candidate) -> None:
        if node.dead:
            return
        if self.time < node.asleep_until:
            self.at(node.asleep_until - self.time, lambda: self.act(node))
            return
        try:
            decision = node.election.decide(self.now(node))
        except LeadershipLost:
            self.come_back(node)
            return
        if isinstance(decision, Rest):
            if node.election.role is Role.OVER:
                self.come_back(node)
            else:
                pause = (decision.until - self.now(node)) / node.rate
                self.at(max(0.001, pause), lambda: self.act(node))
            return
        node.call += 1
        self.send(node, decision, node.call, self.now(node))

    def send(self, node: Candidate, decision: Look | Write, number: int, sent: float) -> None:
        slow = self.random.random() < self.slow and self.time < FAULTS_UNTIL
        there = self.random.uniform(0, 8 if slow else 0.1)

        def arrive() -> None:
            answer = self.apply(decision)
            back = self.random.uniform(0, 3 if slow else 0.1)
            self.at(max(back, node.asleep_until - self.time), lambda: self.answer(node, decision, number, sent, answer))

        self.at(there, arrive)
        self.at(TIMEOUT, lambda: self.give_up(node, number))

    def apply(self, decision: Look | Write) -> Record | str | None:
        found = self.record
        if isinstance(decision, Look):
            return found
        if decision.expected != (found.version if found is not None else None):
            return "conflict"
        self.writes += 1
        self.record = replace(decision.record, version=f"v{self.writes}")
        return self.record

    def answer(
        self, node: Candidate, decision: Look | Write, number: int, sent: float, answer: Record | str | None
    ) -> None:
        if node.dead or number != node.call:
            return
        node.call += 1
        if isinstance(answer, str):
            node.election.conflicted(self.now(node))
        elif isinstance(decision, Look):
            node.election.saw(answer, self.now(node))
        else:
            assert answer is not None
            node.election.wrote(answer, sent)
        self.act(node)

    def give_up(self, node: Candidate, number: int) -> None:
        if node.dead or number != node.call:
            return
        if self.time < node.asleep_until:
            self.at(node.asleep_until - self.time, lambda: self.give_up(node, number))
            return
        node.call += 1
        node.election.failed(self.now(node))
        self.at(self.random.uniform(0.02, 0.5), lambda: self.act(node))

    def come_back(self, node: Candidate) -> None:
        """The process ends and is started again, under its own identity or another."""
        node.dead = True
        self.nodes.remove(node)
        self.nodes.append(self.candidate(self.random.choice([node.election.identity, ""])))

    # What happens to it

    def fault(self) -> None:
        if self.time > FAULTS_UNTIL:
            return
        self.at(self.random.expovariate(0.3), self.fault)
        leaders = [node for node in self.nodes if self.leads(node)]
        node = self.random.choice([*leaders, *leaders, *self.nodes])
        fault = self.random.choice(["die", "sleep", "sleep", "resign", "keep", "keep", "keep"])
        if fault == "die":
            self.come_back(node)
        elif fault == "sleep":
            node.asleep_until = self.time + self.random.uniform(0, 2 * DURATION)
        elif fault == "resign":
            node.election.resign()
        elif node.election.role is Role.LEADING and self.time >= node.asleep_until:
            self.rosters += 1
            node.stored = self.rosters
            node.election.keep((Member(f"s{self.rosters}", ""),))

    # What must hold

    def check(self) -> None:
        leaders = [node.election.identity for node in self.nodes if self.leads(node)]
        assert len(leaders) <= 1, f"{leaders} lead at once"
        for node in self.nodes:
            term = node.election.term
            if term is not None and not node.won and self.leads(node):  # an answer may have come after its time
                node.won = True
                assert all(term.epoch > epoch for epoch in self.epochs), "an epoch that is not new"
                self.epochs.append(term.epoch)
                found = max((int(member.session_id[1:]) for member in term.roster or ()), default=0)
                assert found >= self.kept, "a roster was lost"
            if node.stored and node.election.role is Role.LEADING and node.election.kept:
                self.kept = max(self.kept, node.stored)


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_over_any_history(seed: int) -> None:
    History(seed).run()


def test_histories_are_as_rich_as_they_should_be() -> None:
    """A history in which nobody ever took over would prove nothing."""
    histories = [History(seed) for seed in range(20)]
    for history in histories:
        history.run()
    assert sum(len(history.epochs) for history in histories) > 100
    assert sum(history.kept for history in histories) > 20
