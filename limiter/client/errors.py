"""Why a lease could not be had. Each text is complete; each says what a caller may do."""

from __future__ import annotations

from fairbox.errors import FairboxError


class LimiterError(FairboxError):
    """Base of everything that the limiter's clients raise."""


class QueueTimeout(LimiterError):
    """The request waited for its whole queue timeout. It has left the queue."""


class QueueFull(LimiterError):
    """The queue takes no more requests; ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownBucket(LimiterError):
    """No bucket has that name; the text lists those that exist."""


class LeaseRefused(LimiterError):
    """The request is not acceptable; the text names the field, its value and what is allowed."""


class LimiterUnavailable(LimiterError):
    """The limiter can't be reached, or is going away. Nothing is held for the caller; asking again is safe."""
