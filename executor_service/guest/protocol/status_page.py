"""Messages of a worker to its init: it can't start, the program starts, it has ended. Without descriptors.

Both share two pages of memory. In the first one the worker says when the program starts, or why it can't; it gives
this page up before it becomes the program, which so can't forge any of it. In the second one a Python program says its
exit code, before the kernel has taken its memory apart, and stops itself; the kernel tells the init of the stop, and
the init kills it. No descriptor is needed that the program could find, keep or close. A program that forges the second
page has the same power as one that chooses its exit code.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SILENT, _STARTED, _FAILED = 0, 1, 2
_START = struct.Struct("=BBddq")
"""One of the three above; whether files are to be returned; monotonic seconds at which the program starts; CPU seconds
that the worker has used before; when the work folder was changed last, in nanoseconds of its file system."""
_END = struct.Struct("=BBd")
"""Fields: whether it has ended, exit code, CPU seconds of the process and of the children that it waited for."""
_MOST_TEXT = 3000


class StatusPages:
    """Made by the init once for a box; `clear()` before each use."""

    def __init__(self) -> None:
        self._start = mmap.mmap(-1, mmap.PAGESIZE)
        self._end = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        _START.pack_into(self._start, 0, _SILENT, 0, 0.0, 0.0, 0)
        _END.pack_into(self._end, 0, 0, 0, 0.0)

    def started(self) -> tuple[float, float, bool] | None:
        """When the program started, what CPU time the worker had used before, and whether the server wants files
        returned; None: not yet."""
        said, collects, started, used_s, _ = _START.unpack_from(self._start)
        return (started, used_s, bool(collects)) if said == _STARTED else None

    def changed_ns(self) -> int:
        """When the work folder was changed last before the program started; 0: it has not."""
        changed: int = _START.unpack_from(self._start)[-1]
        return changed

    def failure(self) -> tuple[str, int, str] | None:
        """Stage, errno and text of what kept the program from starting; None: nothing."""
        if self._start[0] != _FAILED:
            return None
        text = self._start[_START.size :].partition(b"\n")[0].decode(errors="replace")
        stage, number, text = text.split("\0", 2)
        return stage, int(number), text

    def ended(self) -> tuple[int, float] | None:
        """The exit code, and the CPU time that the program claims; None: not said."""
        said, code, cpu_s = _END.unpack_from(self._end)
        return (code, cpu_s) if said else None

    def fail(self, stage: str, number: int, text: str) -> NoReturn:
        """In the worker: it can't start."""
        line = f"{stage}\0{number}\0{text}".replace("\n", " ").encode(errors="replace")[:_MOST_TEXT]
        self._start[_START.size : _START.size + len(line) + 1] = line + b"\n"
        self._start[0] = _FAILED
        os._exit(127)

    def start(self, now: float, used_s: float, *, changed_ns: int, collects: bool) -> None:
        """In the worker: the program starts at `now`, or exec is tried."""
        _START.pack_into(self._start, 0, _SILENT, collects, now, used_s, changed_ns)
        self._start[0] = _STARTED  # after the numbers: the init may look at any moment

    def give_up(self) -> None:
        """In the worker: nothing can be said any more of the start."""
        self._start.close()

    def end(self, code: int, cpu_s: float) -> NoReturn:
        """Says it and stops. Where nobody kills a stopped process, it ends in the usual way when continued."""
        _END.pack_into(self._end, 0, 1, code & 0xFF, cpu_s)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(code & 0xFF)
