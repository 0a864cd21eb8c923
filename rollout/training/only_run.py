"""One run writes to a folder at a time: two would take turns with each other's checkpoints, and both be worth nothing.

The kernel holds the lock and lets it go when the process ends, however it ends. A file system without locks protects
nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from fairbox.errors import ConfigError

__all__ = ["only_run"]

LOCK = "run.lock"


@contextlib.contextmanager
def only_run(out: Path) -> Iterator[None]:
    """ConfigError where another run has the folder; it is made where it is not there."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read(200).strip() or "another process"
            raise ConfigError(f"out is {str(out)!r}, to which another run writes ({who})") from None
        except OSError:
            pass  # no locks here
        with contextlib.suppress(OSError):  # a disk that is full: who holds it is a help, and not the lock
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
