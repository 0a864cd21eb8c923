"""Processes and threads that a use may still start, where its init is asked for each of them.

Looks now and then are too late for a bomb: before the second one there are as many as the user may have, and all of
them want the processors that the init needs to end them. Here a bomb has no more than its limit, and they wait.
Invariant: who is told to wait is let go on by `restrict()` alone, or killed.
"""

from __future__ import annotations

import time

from executor_service.guest.walls import tree

_UNTIL_KNOWN = 8
"""Starts before the server has said how many there may be; those of a program that ends at once need not wait."""
_SECOND_LOOK_S = 0.001
"""A thread that was waited for is counted by the kernel for a moment more."""


class ForkGate:
    """`clear()` begins a use, `restrict()` says what it may have."""

    def __init__(self, root: int) -> None:
        """`root`: the init, which is not counted."""
        self._root = root
        self._most: int | None = None
        self._left = _UNTIL_KNOWN
        """Starts for which nobody is counted."""
        self.exceeded = False
        """True once more were wanted than may be."""

    def clear(self) -> None:
        self._most, self._left, self.exceeded = None, _UNTIL_KNOWN, False

    def restrict(self, most: int) -> None:
        """`most` processes and threads at a time; 0: somebody else counts them."""
        self._most, self._left = most, 0

    def admits(self) -> bool:
        """Says whether one more may be started now. False: it has to wait."""
        if self._most == 0:
            return True
        if self._left <= 0 and self._most is not None and not self.exceeded:
            self._left = self._most - tree.count_tasks(self._root, self._most)
            if self._left <= 0:
                time.sleep(_SECOND_LOOK_S)
                self._left = self._most - tree.count_tasks(self._root, self._most)
            self.exceeded = self._left <= 0
        if self._left <= 0:
            return False
        self._left -= 1
        return True
