"""A client as a process: asks for leases, changes its mind, hands leases to executors, writes everything down.

`python -m tests.limiter.chaos.client NAME LIMITER FOLDER SEED TASKS PORT[,PORT...]`, the ports being those of the
executors. SIGTERM lets every task end what it does; the process then says bye in its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
from pathlib import Path

from limiter import Lease, LimiterClient, LimiterUnavailable, QueueFull, QueueTimeout
from tests.limiter.chaos.journal import Journal
from tests.limiter.chaos.recorder import RecordingTransport

_TOKENS = (1, 1, 1, 1, 2, 3)
_QUEUE_TIMEOUTS_S = (0.3, 20.0, 20.0)
_CANCELLED = 0.15
"""Share of the requests whose task changes its mind after a short while."""
_PATIENCE_S = 0.2
"""Mean time until it does."""
_LONG_TASKS = 2
_LONG_S = (1.0, 10.0)
"""Programs of each client's first tasks: most outlive an executor's session that is not kept up, many every fault and
the recovery after it, and with three clients they fill the limit, so that one program too many shows at once."""
_SHORT_S = 0.03
"""Mean of the others."""
_ANSWER_WITHIN_S = 15.0
"""Executors that are killed or stopped don't answer; nobody waits longer than that."""
_UNAVAILABLE_AFTER_S = 20.0


class Client:
    """Tasks that ask again and again."""

    def __init__(self, limiter: LimiterClient, journal: Journal, rng: random.Random, executors: list[int]) -> None:
        self._limiter = limiter
        self._journal = journal
        self._rng = rng
        self._executors = executors
        self._numbers = itertools.count(1)
        self.ending = asyncio.Event()

    async def task(self, *, long: bool) -> None:
        """One caller, until `ending`."""
        while not self.ending.is_set():
            if await self.once(long=long) in ("rejected", "unavailable"):
                await asyncio.sleep(0.05)

    async def once(self, *, long: bool) -> str:
        """One request, and the program if it was granted; how the request ended."""
        rng, request = self._rng, f"r{next(self._numbers)}"
        tokens, timeout = 1 if long else rng.choice(_TOKENS), rng.choice(_QUEUE_TIMEOUTS_S)
        patience = rng.expovariate(1 / _PATIENCE_S) if rng.random() < _CANCELLED else None
        hold_s = rng.uniform(*_LONG_S) if long else rng.expovariate(1 / _SHORT_S)
        executor = rng.choice(self._executors)
        self._journal.note("request", request=request, bucket="code", tokens=tokens)
        async with contextlib.AsyncExitStack() as stack:
            context = self._limiter.lease(tokens=tokens, queue_timeout=timeout, request_id=request)
            try:
                async with asyncio.timeout(patience):
                    lease = await stack.enter_async_context(context)
            except TimeoutError:
                return self._end(request, "cancelled")
            except QueueTimeout:
                return self._end(request, "timed out")
            except QueueFull:
                return self._end(request, "rejected")
            except LimiterUnavailable:
                return self._end(request, "unavailable")
            self._end(request, "granted")
            await self._run(lease, tokens, hold_s, executor)
        return "granted"

    def _end(self, request: str, outcome: str) -> str:
        self._journal.note("end", request=request, outcome=outcome)
        return outcome

    async def _run(self, lease: Lease, tokens: int, hold_s: float, port: int) -> None:
        order = {
            "bucket": lease.bucket,
            "epoch": lease.epoch,
            "seq": lease.seq,
            "client_session_id": lease.client_session_id,
            "tokens": tokens,
            "hold_s": hold_s,
        }
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(json.dumps(order).encode() + b"\n")
                    answer = json.loads(await reader.readline() or b'"gone"')
                finally:
                    writer.close()
        except (TimeoutError, OSError) as error:
            answer = type(error).__name__
        self._journal.note("answer", epoch=lease.epoch, seq=lease.seq, answer=answer)


async def main(name: str, limiter: str, folder: str, seed: str, tasks: str, executors: str) -> None:
    """Until SIGTERM."""
    journal = Journal(Path(folder) / f"{name}.jsonl")
    ports = [int(port) for port in executors.split(",")]
    transport = RecordingTransport(limiter, journal)
    async with LimiterClient(limiter, name=name, unavailable_after=_UNAVAILABLE_AFTER_S, transport=transport) as client:
        program = Client(client, journal, random.Random(f"{seed} {name}"), ports)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.ending.set)
        await asyncio.gather(*(program.task(long=number < _LONG_TASKS) for number in range(int(tasks))))
    journal.note("bye")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
