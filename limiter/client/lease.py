"""A lease as its holders see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from limiter.core.reasons import BindStatus


class LeaseLike(Protocol):
    """Anything with the four fields of a lease: this package's `Lease`, or the proto message of any tier."""

    @property
    def bucket(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def client_session_id(self) -> str: ...


class Lease(NamedTuple):
    """The right to run one program now. Pass its four fields to the executor, as fields of the request.

    A named tuple because it is a dictionary key wherever it goes: a tuple hashes and compares in C.
    """

    bucket: str
    epoch: int
    """Epoch of the limiter that granted it."""
    seq: int
    """Number within the epoch."""
    client_session_id: str
    """Session that it was granted to; an executor presents it to bind the lease."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.epoch}.{self.seq}"

    @classmethod
    def of(cls, lease: LeaseLike) -> Lease:
        """The same lease as a value of this class."""
        if isinstance(lease, cls):
            return lease
        return cls(lease.bucket, lease.epoch, lease.seq, lease.client_session_id)


_SENTENCES = {
    BindStatus.BOUND: "is bound to this executor",
    BindStatus.UNKNOWN_LEASE: "was released, has expired, was revoked, or was never granted",
    BindStatus.WRONG_EPOCH: "is of another epoch than the limiter's",
    BindStatus.WRONG_CLIENT: "was granted to another client session than the one presented",
    BindStatus.BOUND_ELSEWHERE: "is bound by another executor",
}


@dataclass(frozen=True, slots=True)
class BindOutcome:
    """What became of a bind. User code may start only when `bound`."""

    lease: Lease
    status: BindStatus
    owner: str = ""
    """With BOUND_ELSEWHERE: name of the executor that holds the lease."""

    @property
    def bound(self) -> bool:
        return self.status is BindStatus.BOUND

    def __str__(self) -> str:
        owner = f", {self.owner}" if self.owner else ""
        return f"lease {self.lease} {_SENTENCES[self.status]}{owner}"
