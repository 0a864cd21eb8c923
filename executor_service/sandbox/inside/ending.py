"""How a Python program says that it has ended, before the kernel has taken its memory apart.

The worker writes its exit code into a page that it shares with the init, and stops itself; the init is told of the stop
by the kernel, and kills it. No descriptor is needed that the program could find, keep or close. A program that forges
this has the same power as one that chooses its exit code.
"""

from __future__ import annotations

import mmap
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


class EndPage:
    """One byte whether it is set, one byte of exit code."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        self._page[:] = bytes(mmap.PAGESIZE)

    def code(self) -> int | None:
        """The exit code; None: not said."""
        return self._page[1] if self._page[0] else None

    def end(self, code: int) -> NoReturn:
        """Says it and stops. Where nobody kills a stopped process, it ends in the usual way when continued."""
        self._page[0:2] = bytes((1, code & 0xFF))
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(code & 0xFF)
