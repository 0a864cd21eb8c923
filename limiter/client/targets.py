"""Where to look for the limiter that leads, as a pure state machine: what became of a connection goes in.

Several addresses are tried in turn. An address at which it worked is tried once more first: its process may have been
started again. Within one round nothing is waited for; after it, whoever runs this waits, and the waits grow.
"""

from __future__ import annotations

from collections.abc import Callable

from fairbox.errors import FieldError, FieldErrors

__all__ = ["MAX_TARGETS", "Targets"]

MAX_TARGETS = 16


class Targets:
    """Ask `current`, and say with `lost()` what became of it."""

    def __init__(self, targets: str, first: str = "") -> None:
        """`targets`: HOST:PORT, or up to 16 of them with commas between; `first` is where to begin. FieldErrors for an
        empty one, and for more."""
        self._listed = tuple(each.strip() for each in targets.split(","))
        if not all(self._listed):
            raise FieldErrors([FieldError("target", f"is {targets!r}, must be HOST:PORT, or several separated by ','")])
        if len(self._listed) > MAX_TARGETS:
            raise FieldErrors(
                [FieldError("target", f"has {len(self._listed)} addresses, must have at most {MAX_TARGETS}")]
            )
        self._next = 0
        if not first or first in self._listed:
            self._next = (self._listed.index(first or self._listed[0]) + 1) % len(self._listed)
        self._tried = 0
        """Addresses of the list that have failed since the last wait."""
        self.current = first or self._listed[0]
        """Where to connect next."""

    def each(self, check: Callable[[str], None]) -> None:
        """Calls `check` with every address of the list."""
        for target in self._listed:
            check(target)

    def lost(self, *, worked: bool) -> bool:
        """The connection to `current` has ended. `worked`: it had been welcomed there. Returns whether the next one is
        to be tried at once."""
        if worked:
            self._tried = 0
            return False
        self.current = self._listed[self._next]
        self._next = (self._next + 1) % len(self._listed)
        self._tried += 1
        if self._tried < len(self._listed):
            return True
        self._tried = 0
        return False
