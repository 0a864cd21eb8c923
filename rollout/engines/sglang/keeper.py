"""Keeps a server alive for as long as its owner lives: `python -I keeper.py --restarts N -- COMMAND`.

Invariants: the command runs in a process group of its own, which ends when this program's standard input ends, which is
when the owner closes it or dies, however it dies; a command that ends by itself is started again at most N times, with
growing pauses; the exit code is the command's last one. It is run as a file and uses the standard library alone, so
that nothing of this project's environment reaches a server that has another one.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

_TERM_S = 10.0
"""From SIGTERM to SIGKILL. sglang waits for its running turns on SIGTERM; nobody waits for those any more."""
_LONG_S = 300.0
"""A command that ran for as long has used up none of its restarts."""
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0)
_POLL_S = 0.2


def command(words: Sequence[str], *, restarts: int = 0) -> list[str]:
    """Command line of a keeper that runs `words`. The process that starts it must hold a pipe to its standard input."""
    return [sys.executable, "-I", __file__, "--restarts", str(restarts), "--", *words]


def main(argv: Sequence[str]) -> int:
    """Runs until the command or the owner ends."""
    if len(argv) < 4 or argv[0] != "--restarts" or argv[2] != "--":
        print("usage: keeper.py --restarts N -- COMMAND...", file=sys.stderr)  # noqa: T201
        return 2
    restarts, words = int(argv[1]), argv[3:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    done = 0
    while True:
        began = time.monotonic()
        code = _run_once(words)
        if code is None:
            return 0
        done = 0 if time.monotonic() - began > _LONG_S else done
        if done >= restarts:
            return code if code >= 0 else 128 - code
        print(f"keeper: the server ended with {code}; started again", file=sys.stderr, flush=True)  # noqa: T201
        if _owner_ends_within(_BACKOFF_S[min(done, len(_BACKOFF_S) - 1)]):
            return 0
        done += 1


def _run_once(words: Sequence[str]) -> int | None:
    """The exit code of the command; None when the owner ended first."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - what it is for
    try:
        while process.poll() is None:
            if _owner_ends_within(_POLL_S):
                return None
        return process.returncode
    finally:
        _end(process)


def _owner_ends_within(seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        readable, _, _ = select.select([0], [], [], left)
        if readable and not os.read(0, 1024):
            return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole group, also what is left of it when the command itself has ended."""
    for number, seconds in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds if process.returncode is None else 0.0)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
