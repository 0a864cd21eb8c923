"""The worker process: reads a function, runs it, writes what became of it, again and again.

Started as `python -c` with the descriptor of a socket and the pid of the pool's process. It dies with that process: by
the kernel's signal on Linux, and by the end of the socket elsewhere, where that is noticed between two functions only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import Any

from limiter.pool.errors import FunctionFailed
from limiter.pool.message import LENGTH_BYTES, dumps, loads, pack
from limiter.pool.outcome import Outcome, call, traceback_of

__all__ = ["serve"]

_PR_SET_PDEATHSIG = 1


def serve(descriptor: int, parent: int, max_bytes: int) -> None:
    """Runs functions until the socket ends."""
    _die_with(parent)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        connection.set_inheritable(False)
        stream.write(pack(b"", max_bytes))
        stream.flush()
        while head := stream.read(LENGTH_BYTES):
            data = stream.read(int.from_bytes(head, "big"))
            stream.write(_run(data, max_bytes))
            stream.flush()


def _run(data: bytes, max_bytes: int) -> bytes:
    """Unpickles and runs a function; returns the message with (value, error, traceback)."""
    try:
        function, args, kwargs = loads(data)
    except Exception as error:
        outcome = Outcome(error=error)
    else:
        outcome = call(function, args, kwargs)
        del function, args, kwargs
    text = traceback_of(outcome.error) if outcome.error is not None else ""
    try:
        return pack(_dumps(outcome.value, outcome.error, text), max_bytes)
    except Exception as error:
        if outcome.error is not None:
            what = f"the function raised {type(outcome.error).__name__}, which can't be sent: {outcome.error}"
        elif isinstance(error, FunctionFailed):
            what = f"the function's result can't be sent: {error}"
        else:
            what = f"the function's result, a {type(outcome.value).__name__}, can't be pickled: {error}"
        return pack(_dumps(None, FunctionFailed(what[:10_000]), text[-10_000:]), max_bytes)


def _dumps(value: Any, error: BaseException | None, text: str) -> bytes:
    data = dumps((value, error, text))
    if error is not None:
        loads(data)  # some exceptions can be pickled but not read again
    return data


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
