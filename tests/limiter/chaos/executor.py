"""An executor as a process: binds the leases that clients bring, runs a stand-in for a program, writes both down.

`python -m tests.limiter.chaos.executor NAME LIMITER PORT FOLDER`. It keeps the promises of `ExecutorSession` as the
real executor does. Its programs take steps, each with a time that was read before the session was found valid, so that
a step in the record was allowed by the executor's own clock however long the process was stopped or waited for a
processor afterwards. A real program in a sandbox goes on while its executor is stopped; that is why docs/limiter.md
counts a stopped executor among the faults that break the promise, and why this one may be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
from pathlib import Path

from limiter import ExecutorSession, Lease, LimiterError
from tests.limiter.chaos.journal import Journal, Steps

_STEP_S = 0.01
_SET_UP_S = 0.002
"""Between the bind and the start a real executor sets up a sandbox; the session is checked again after it."""
_BIND_WITHIN_S = 2.0


class Executor:
    """Runs what it is asked for over a socket, one line of JSON each way."""

    def __init__(self, session: ExecutorSession, journal: Journal, steps: Steps) -> None:
        self._session = session
        self._journal = journal
        self._steps = steps
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
        number, end, last = next(self._numbers), start + int(hold_s * 1e9), start
        self._journal.note(
            "start", at=start, run=number, bucket=lease.bucket, tokens=tokens, epoch=lease.epoch, seq=lease.seq
        )
        while (now := time.monotonic_ns()) < end:
            if lost.is_set() or not self._session.valid:
                self._journal.note("stop", at=last, run=number)
                return "killed"
            self._steps.take(number, now)
            last = now
            await asyncio.sleep(min(_STEP_S, (end - now) / 1e9))
        self._journal.note("stop", at=now if self._session.valid else last, run=number)
        return "ended"


async def main(name: str, limiter: str, port: str, folder: str) -> None:
    """Until SIGTERM."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    path = Path(folder) / f"{name}.jsonl"
    async with ExecutorSession(limiter, executor_id=name) as session:
        executor = Executor(session, Journal(path), Steps(path.with_suffix(".steps")))
        async with await asyncio.start_server(executor.answer, "127.0.0.1", int(port)):
            await ending.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
