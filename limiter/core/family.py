"""Leases within leases: a program that runs under a lease asks for another one of the same bucket.

Such a lease is granted within the tokens of its parent, so that a program that waits for its own children can't wait
for itself. The leases that share tokens are a family. Invariants: exactly one member of a family carries its tokens in
the books, so that they are counted once, from the first member to the last; a parent has at most one child with a lease
at a time, the others wait in a line of their own, in the order of their tickets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limiter.core.waiting import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limiter.core.ids import LeaseId
    from limiter.core.lease import Lease

__all__ = ["Families", "Family", "Line"]


class Family:
    """Leases that share the tokens of the first of them. A record."""

    __slots__ = ("members", "root", "tokens")

    def __init__(self, root: LeaseId, tokens: int) -> None:
        self.root = root
        """The first of them; it may have ended."""
        self.tokens = tokens
        self.members: dict[LeaseId, Lease] = {}
        """Those that have not ended, oldest first."""


class Line:
    """What is asked for and held under one parent. A record."""

    __slots__ = ("parent", "queue", "running")

    def __init__(self, parent: LeaseId) -> None:
        self.parent = parent
        self.queue = WaitQueue()
        self.running: Lease | None = None
        """The child that has a lease."""


class Families:
    """All families and lines. `Ledger` alone changes it."""

    def __init__(self) -> None:
        self.lines: dict[LeaseId, Line] = {}
        """By parent. A line outlives its parent until what runs in it has ended; after a restart it may be there
        before its parent is."""
        self._families: dict[LeaseId, Family] = {}
        """By root."""

    def line(self, parent: LeaseId) -> Line:
        """The line under a parent, started if there is none."""
        line = self.lines.get(parent)
        if line is None:
            line = self.lines[parent] = Line(parent)
        return line

    def of(self, lease: Lease) -> Family:
        """The family of a lease, started if there is none."""
        family = lease.family
        if family is None:
            family = lease.family = self._families[lease.lease_id] = Family(lease.lease_id, lease.tokens)
            family.members[lease.lease_id] = lease
        return family

    def join(self, lease: Lease, parent: Lease) -> None:
        """A child was granted within its parent's tokens."""
        lease.family, lease.parent = self.of(parent), parent.lease_id
        lease.family.members[lease.lease_id] = lease
        self.line(parent.lease_id).running = lease

    def leave(self, lease: Lease) -> Lease | None:
        """A member has ended. Returns the heir that carries the tokens from now on, if the lease carried them and
        somebody is left."""
        family = lease.family
        assert family is not None
        del family.members[lease.lease_id]
        if lease.parent is not None:
            line = self.lines.get(lease.parent)
            if line is not None and line.running is lease:
                line.running = None
        if not family.members:
            self._families.pop(family.root, None)
            return None
        return next(iter(family.members.values())) if lease.tokens else None

    def adopt(self, lease: Lease, root: LeaseId | None, leases: Mapping[LeaseId, Lease]) -> None:
        """Takes in a lease of an earlier epoch, which was granted within the family of `root` where that is given.
        Members come in any order: the first that comes carries the tokens."""
        family = self._families.get(root or lease.lease_id)
        if family is None:
            if root is None:
                return
            first = leases.get(root)
            family = (
                self.of(first) if first is not None else self._families.setdefault(root, Family(root, lease.tokens))
            )
        if family.members:
            lease.tokens = 0
        family.members[lease.lease_id] = lease
        lease.family = family
        if lease.parent is not None:
            self.line(lease.parent).running = lease
