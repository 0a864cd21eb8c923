"""When what runs under a lease in a box has to be dead, as the init sees it: it reads what the server writes.

Memory, and no message: a server that hangs says nothing more. The init's children do not have it.
"""

from __future__ import annotations

import ctypes
import math
import os

from executor_service.guest.walls import syscalls as sys_

COUNTS_AT = 64
"""Bytes before the counts of leases, four for each box: the first eight are the time, and share no cache line."""
_LOOK_S = 1.0
"""Between two looks while nothing of a box runs under a lease. A lease is young when work begins under it."""


class LeaseDeadline:
    """Lease deadline of the box with this number. Closes `handle`."""

    def __init__(self, handle: int, number: int) -> None:
        address = sys_.map_for_oneself(handle, os.fstat(handle).st_size)
        os.close(handle)
        self._until = ctypes.c_double.from_address(address)
        self._held = ctypes.c_uint32.from_address(address + COUNTS_AT + 4 * number)

    def left_s(self, now: float, *, begun: bool) -> float:
        """Seconds that the init may wait before it looks again. `begun`: the present use has begun; until then, a lease
        that is held is that of the use before."""
        until = self._until.value
        if until == math.inf:
            return math.inf
        return max(0.0, until - now) if begun and self._held.value else _LOOK_S

    def lapsed(self, now: float) -> bool:
        """Says whether something runs under a lease that allows it no longer."""
        return bool(self._held.value) and now >= self._until.value
