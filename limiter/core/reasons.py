"""The limiter's vocabulary: kinds of sessions, states of leases, and why something was refused or ended."""

from __future__ import annotations

from enum import StrEnum


class SessionKind(StrEnum):
    """Purpose of a session."""

    CLIENT = "client"
    """Asks for tokens over a stream; holds a lease only until an executor binds it."""
    EXECUTOR = "executor"
    """Binds and releases leases over a stream; may ask for tokens for work that came without one."""
    UNARY = "unary"
    """Made by the server for the unary calls of one client id; lives as long as it waits for or holds something."""


class LeaseState(StrEnum):
    """State of a lease."""

    GRANTED = "granted"
    """A client has it; it can be taken back at any time, because binding it will then be refused."""
    HELD = "held"
    """A client has it for a hold time: nobody binds it, and work may be running under it until that has passed."""
    BOUND = "bound"
    """An executor runs work under it; only the executor's word or the end of its session frees it."""
    REVOKING = "revoking"
    """Bound, and its executor was told to kill the work; counted until the executor says that it is dead."""


UNBOUND = (LeaseState.GRANTED, LeaseState.HELD)
"""No executor has them."""


class RejectReason(StrEnum):
    """Why a request will not be granted."""

    QUEUE_FULL = "queue_full"
    """The bucket's queue, or this client's share of it, is full."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The request's own queue timeout ran out."""
    UNKNOWN_BUCKET = "unknown_bucket"
    """No bucket has that name."""
    INVALID = "invalid"
    """A value is not acceptable; the message names it."""
    CANCELLED = "cancelled"
    """A unary request was withdrawn by its client, possibly before it arrived."""
    SHUTTING_DOWN = "shutting_down"
    """This limiter is going away."""


class BindStatus(StrEnum):
    """Answer to a bind."""

    BOUND = "bound"
    """The lease is bound to this executor session; work may start. Repeating the bind gives the same answer."""
    UNKNOWN_LEASE = "unknown_lease"
    """No such lease: it was released, expired, revoked, or never granted."""
    WRONG_EPOCH = "wrong_epoch"
    """The lease is of another epoch than the limiter's."""
    WRONG_CLIENT = "wrong_client"
    """The lease was granted to another client session than the one presented."""
    BOUND_ELSEWHERE = "bound_elsewhere"
    """Another executor session has bound it."""


class ReleaseOutcome(StrEnum):
    """Outcome of the work under a lease."""

    OK = "ok"
    """It ran to an end of its own, whatever its result."""
    ERROR = "error"
    """It could not be done, for a reason other than overload."""
    OVERLOADED = "overloaded"
    """The side that does the work said that it is overloaded."""
    TIMEOUT = "timeout"
    """The side that does the work did not answer in time."""
    UNUSED = "unused"
    """The lease was given back without being used."""


class BucketOrder(StrEnum):
    """In which order a bucket grants."""

    FIFO = "fifo"
    """By ticket, whoever asks."""
    FAIR_BY_TENANT = "fair_by_tenant"
    """Round robin over the tenants that have requests waiting, by ticket within a tenant."""
