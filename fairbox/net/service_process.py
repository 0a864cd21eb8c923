"""Prepares a process that was started as `python -m` one of the services, before anything else is loaded.

Import this before gRPC and before other packages.

- It chooses gRPC's older listener: gRPC reads its environment once, when it is loaded. The older listener reads a
  connection in the thread that hands its calls on; that of its event engine wakes two more threads for each message,
  one after the other. By turns on two processors the older one takes 13 to 23 % less CPU time of a limiter's pair, 2 to
  5 % of a program's, and 5 % off the time of a cell.
- It puts the current folder last on Python's path, so that a user's `limiter.py` in it is not taken for fairbox's.

Invariants: a process that was started otherwise keeps its path and its gRPC; GRPC_EXPERIMENTS, if it is set, is left as
it is. A gRPC that no longer has the choice says so in a line.
"""

from __future__ import annotations

import os
import sys

_SERVICES = ("executor_service", "limiter", "benchmarks")
"""Benchmarks hold the services against peers and floors, which have the same."""
_OLDER = "-event_engine_listener"


def _started_as() -> str:
    """The top package of `python -m`, while Python looks for the module that it is to run; else empty.

    Meanwhile sys.argv is `-m` and the arguments, before which the name stands in sys.orig_argv.
    """
    if sys.argv[:1] != ["-m"] or len(sys.orig_argv) < len(sys.argv):
        return ""
    name = sys.orig_argv[-len(sys.argv)]
    if name.startswith("-"):  # as in -mlimiter and -Bmlimiter
        name = name.partition("m")[2]
    return name.partition(".")[0]


if _started_as() in _SERVICES:
    os.environ.setdefault("GRPC_EXPERIMENTS", _OLDER)
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
