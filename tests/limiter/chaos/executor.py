"""An executor as a process: binds the leases that clients bring, runs a stand-in for a program, writes both down.

`python -m tests.limiter.chaos.executor NAME LIMITER PORT FOLDER`. It keeps the promises of `ExecutorSession` as the
real executor does, and as there its programs run in a process of their own, which goes on when this one is stopped: it
reads from shared memory until when they may, and ends them by itself. Each step of a program has a time that was read
before the session was found valid, so that a step in the record was allowed by the clock however long the process
waited for a processor afterwards. What ran is known from these steps alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

from limiter import ExecutorSession, Lease, LimiterError
from tests.limiter.chaos.journal import SLOTS, Journal, Steps

_STEP_S = 0.01
_SET_UP_S = 0.002
"""Between the bind and the start a real executor sets up a sandbox; the session is checked again after it."""
_BIND_WITHIN_S = 2.0


class Executor:
    """Runs what it is asked for over a socket, one line of JSON each way."""

    def __init__(self, session: ExecutorSession, journal: Journal, programs: Programs) -> None:
        self._session = session
        self._journal = journal
        self._programs = programs
        self._numbers = itertools.count()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection, which brings one program."""
        try:
            with contextlib.suppress(ConnectionError, ValueError):
                order = json.loads(await reader.readline())
                lease = Lease(order["bucket"], order["epoch"], order["seq"], order["client_session_id"])
                writer.write(json.dumps(await self.run(lease, order["tokens"], order["hold_s"])).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    async def run(self, lease: Lease, tokens: int, hold_s: float) -> str:
        """Runs a program for that long under the lease; how it ended."""
        session = self._session
        try:
            outcome = await session.bind(lease, timeout=_BIND_WITHIN_S)
        except LimiterError as error:
            return f"{type(error).__name__}: {error}"
        if not outcome.bound:
            return outcome.status.value
        lost = asyncio.Event()
        try:
            session.when_lost(lease, lost.set)
            await asyncio.sleep(_SET_UP_S)
            now = time.monotonic_ns()
            if not session.vouches(lease):
                return "lost before its start"
            return await self._program(lease, tokens, hold_s, lost, now)
        finally:
            session.release(lease)

    async def _program(self, lease: Lease, tokens: int, hold_s: float, lost: asyncio.Event, start: int) -> str:
        number, end = next(self._numbers), start + int(hold_s * 1e9)
        self._journal.note(
            "start", at=start, run=number, bucket=lease.bucket, tokens=tokens, epoch=lease.epoch, seq=lease.seq
        )
        self._programs.start(number, end)
        while not self._programs.ended(number):
            if lost.is_set():
                self._programs.kill(number)
            await asyncio.sleep(_STEP_S)
        return "ended" if time.monotonic_ns() >= end else "killed"


class Programs:
    """Programs, in a process of their own that ends with this one. Make it before there are threads."""

    _END = struct.Struct("=q")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._memory = mmap.mmap(-1, (SLOTS + 2) * self._END.size)
        """The number of programs so far, until when they may run, and the end of each: 0 once it has come."""
        self._running: set[int] = set()
        self._seen = 0
        if not os.fork():
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            while os.getppid() != 1:
                self._turn()
                time.sleep(_STEP_S)
            os._exit(0)

    def renew(self, valid_until: float) -> None:
        """They may run until then."""
        self._put(1, int(max(valid_until, 0.0) * 1e9))

    def start(self, number: int, end: int) -> None:
        """Number by number."""
        self._put(2 + number, end)
        self._put(0, number + 1)

    def kill(self, number: int) -> None:
        """It ends with its next step."""
        self._put(2 + number, min(1, self._get(2 + number)))

    def ended(self, number: int) -> bool:
        """Says whether the program has taken its last step."""
        return not self._get(2 + number)

    def _turn(self) -> None:
        """One step of each."""
        count = self._get(0)
        self._running.update(range(self._seen, count))
        self._seen = count
        for number in list(self._running):
            now = time.monotonic_ns()
            if now < min(self._get(2 + number), self._get(1)):
                self._steps.take(number, now)
            else:
                self._put(2 + number, 0)
                self._running.discard(number)

    def _get(self, index: int) -> int:
        (value,) = self._END.unpack_from(self._memory, index * self._END.size)
        return int(value)

    def _put(self, index: int, value: int) -> None:
        self._END.pack_into(self._memory, index * self._END.size, value)


async def main(programs: Programs, path: Path, name: str, limiter: str, port: str) -> None:
    """Until SIGTERM."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with ExecutorSession(limiter, executor_id=name, on_renewed=programs.renew) as session:
        executor = Executor(session, Journal(path), programs)
        async with await asyncio.start_server(executor.answer, "127.0.0.1", int(port)):
            await ending.wait()


if __name__ == "__main__":
    name, limiter, port, folder = sys.argv[1:]
    path = Path(folder) / f"{name}.jsonl"
    asyncio.run(main(Programs(Steps(path.with_suffix(".steps"))), path, name, limiter, port))
