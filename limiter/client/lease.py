"""A lease as its holders see it, and how the work under it ended."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from limiter.core.reasons import BindStatus, ReleaseOutcome


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
    """Answer to a bind. User code may start only if `bound`."""

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


_OVERLOADED, _TIMEOUT = ReleaseOutcome.OVERLOADED, ReleaseOutcome.TIMEOUT
_STATUSES = {
    429: _OVERLOADED,
    503: _OVERLOADED,
    "RESOURCE_EXHAUSTED": _OVERLOADED,
    408: _TIMEOUT,
    504: _TIMEOUT,
    "DEADLINE_EXCEEDED": _TIMEOUT,
}
"""Statuses of HTTP and gRPC by which a service says that it is overloaded, or that something took too long."""
_CAUSES = 10
"""Exceptions behind an exception that are looked at: a library's own lie five deep."""


def outcome_of(error: BaseException | None) -> ReleaseOutcome:
    """Returns how work ended that raised `error`; None: nothing. OVERLOADED or TIMEOUT where the exception, or one that
    it was raised for, has a status that says so, under the names of aiohttp, httpx, requests, urllib, openai or grpc,
    or is a TimeoutError; ERROR for every other one."""
    if error is None:
        return ReleaseOutcome.OK
    for _ in range(_CAUSES):
        said = _said(error) or (_TIMEOUT if isinstance(error, TimeoutError) else None)
        if said is not None:
            return said
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if behind is None:
            break
        error = behind
    return ReleaseOutcome.ERROR


def _said(error: BaseException) -> ReleaseOutcome | None:
    for name in ("status", "status_code", "response", "code"):
        with contextlib.suppress(Exception):  # a stranger's class may do as it likes
            said = getattr(error, name, None)
            said = getattr(said, "status_code", said) if name == "response" else said() if callable(said) else said
            found = _STATUSES.get(int(said) if isinstance(said, int) else getattr(said, "name", ""))
            if found is not None:
                return found
    return None
