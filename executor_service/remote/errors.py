"""What a remote sandbox may answer instead of a result. In both cases no program has run. Imports nothing."""

from __future__ import annotations

__all__ = ["RemoteBusy", "RemoteDown"]


class RemoteBusy(Exception):  # noqa: N818 - a decision of another service
    """It takes no more programs at this moment. Ask again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RemoteDown(Exception):  # noqa: N818 - a fact about another service
    """It can't be reached, or does not serve what is at its URL."""
