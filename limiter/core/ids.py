"""Names of the two things that the limiter numbers: places in a queue and leases.

Both are an epoch and a number within it, so that names of an earlier limiter are recognised, and sort first. They are
named tuples because they are dictionary keys on the hot path, where a tuple hashes and compares in C.
"""

from __future__ import annotations

from typing import NamedTuple


class Ticket(NamedTuple):
    """A place in the queue. Lower tickets are granted first; a ticket survives reconnection and restart."""

    epoch: int
    """Epoch of the limiter that issued it."""
    seq: int
    """Number within the epoch, from 1, over all buckets."""


class LeaseId(NamedTuple):
    """A granted lease."""

    epoch: int
    """Epoch of the limiter that granted it."""
    seq: int
    """Number within the epoch, from 1, over all buckets."""

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> LeaseId:
        """The id that `str()` wrote; ValueError names what is wrong."""
        epoch, dot, seq = text.partition(".")
        if not dot or not (epoch.isascii() and epoch.isdigit()) or not (seq.isascii() and seq.isdigit()):
            raise ValueError(f"{text!r} is not of the form EPOCH.SEQ")
        return cls(int(epoch), int(seq))
