"""A client as a process: asks for leases, changes its mind, hands leases to executors, writes everything down.

`python -m tests.limiter.chaos.client NAME LIMITER FOLDER SEED WORLD PORTS`: WORLD as JSON, PORTS those of the
executors, with commas. Some tasks call the unary methods. Where there are holds, or no executors, the work of a lease
is its own, written down step by step. SIGTERM lets every task end what it does; the process then says bye.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc
import grpc.aio

from fairbox.net.channels import open_channel
from limiter import Lease, LimiterClient, LimiterUnavailable, QueueFull, QueueTimeout
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.chaos.journal import Journal, Steps
from tests.limiter.chaos.recorder import RecordingTransport
from tests.limiter.chaos.world import World
from tests.limiter.servers import unary_lease

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterServiceAsyncStub

_TOKENS = (1, 1, 1, 1, 2, 3)
_CANCELLED = 0.15
"""Share of the requests whose task changes its mind after a short while."""
_PATIENCE_S = 0.2
"""Mean time until it does."""
_LONG_TASKS = 2
"""Number of long tasks of each client: their programs outlive most faults and the recoveries after them, and with three
clients they fill the limit, so that one program too many shows at once."""
_HELD_FOR_S = 5.0
"""Time by which a hold outlasts the work under it: longer than a grant can be on its way."""
_UNBOUND_TTL_S = 2.0
_STEP_S = 0.01
_AGAIN_S = 0.1
"""After a refusal."""
_ANSWER_WITHIN_S = 15.0
"""Executors that are killed or stopped don't answer; nobody waits longer than that."""
_UNAVAILABLE_AFTER_S = 20.0


class Client:
    """Tasks that ask again and again."""

    def __init__(
        self, limiter: LimiterClient, stub: LimiterServiceAsyncStub, journal: Journal, steps: Steps, world: World
    ) -> None:
        self._limiter = limiter
        self._stub = stub
        self._journal = journal
        self._steps = steps
        self._world = world
        self._numbers = itertools.count(1)
        self._runs = itertools.count()
        self.ending = asyncio.Event()

    async def task(self, rng: random.Random, executors: list[int], *, long: bool, unary: bool) -> None:
        """One caller, until `ending`."""
        while not self.ending.is_set():
            if await self.once(rng, executors, long=long, unary=unary) in ("rejected", "unavailable"):
                await asyncio.sleep(_AGAIN_S)

    async def once(self, rng: random.Random, executors: list[int], *, long: bool, unary: bool) -> str:
        """One request, and the program if it was granted; how the request ended."""
        # A client's requests are numbered in the order in which they are made.
        serial = next(self._numbers) if unary else self._limiter._runner.machine._serial + 1
        world, request = self._world, f"r{serial}" if unary else f"#{serial}"
        tokens, timeout = 1 if long else rng.choice(_TOKENS), rng.choice([0.3, world.queue_s, world.queue_s])
        patience = rng.expovariate(1 / _PATIENCE_S) if rng.random() < _CANCELLED else None
        work_s = rng.uniform(*world.long_s) if long else rng.expovariate(1 / world.short_s)
        executor = rng.choice(executors) if executors else 0
        holds = not executor or (world.holds and rng.random() < 0.5)
        hold = work_s + _HELD_FOR_S if holds else 0.0
        self._journal.note("request", request=request, bucket="code", tokens=tokens)
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(patience):
                    lease = await stack.enter_async_context(self._asked(tokens, timeout, hold, unary=unary))
            except TimeoutError:
                return self._end(request, "cancelled")
            except QueueTimeout:
                return self._end(request, "timed out")
            except QueueFull:
                return self._end(request, "rejected")
            except (LimiterUnavailable, grpc.aio.AioRpcError):
                return self._end(request, "unavailable")
            if unary:
                self._journal.note("granted", stream=0, request=request, epoch=lease.epoch, seq=lease.seq)
            self._end(request, "granted")
            if holds:
                await self._work(lease, tokens, work_s, unary=unary)
            else:
                await self._run(lease, tokens, work_s, executor)
        return "granted"

    @contextlib.asynccontextmanager
    async def _asked(self, tokens: int, timeout: float, hold: float, *, unary: bool) -> AsyncIterator[Lease]:
        if not unary:
            async with self._limiter.lease(tokens=tokens, queue_timeout=timeout, hold=hold) as lease:
                yield lease
            return
        message = pb.AcquireTokenRequest(
            tokens=tokens, queue_timeout_s=timeout, hold_s=hold, unbound_ttl_s=_UNBOUND_TTL_S
        )
        async with unary_lease(self._stub, message, timeout=timeout + _ANSWER_WITHIN_S) as granted:
            yield Lease.of(granted)

    async def _work(self, lease: Lease, tokens: int, seconds: float, *, unary: bool) -> None:
        """Works under a hold; as with an executor, each step has a time at which it was allowed."""
        number, start = next(self._runs), time.monotonic_ns()
        self._journal.note(
            "start",
            at=start,
            run=number,
            bucket=lease.bucket,
            tokens=tokens,
            epoch=lease.epoch,
            seq=lease.seq,
            held="unary" if unary else "stream",
        )
        while (now := time.monotonic_ns()) < start + seconds * 1e9:
            self._steps.take(number, now)
            await asyncio.sleep(_STEP_S)

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


async def main(name: str, limiter: str, folder: str, seed: str, drawn: str, executors: str) -> None:
    """Until SIGTERM."""
    path, world = Path(folder) / f"{name}.jsonl", World(**json.loads(drawn))
    journal, ports = Journal(path), [int(port) for port in executors.split(",") if port]
    transport = RecordingTransport(limiter, journal)
    async with (
        LimiterClient(limiter, name=name, unavailable_after=_UNAVAILABLE_AFTER_S, transport=transport) as client,
        open_channel(limiter) as channel,
    ):
        stub = cast("LimiterServiceAsyncStub", limiter_pb2_grpc.LimiterServiceStub(channel))
        program = Client(client, stub, journal, Steps(path.with_suffix(".steps")), world)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.ending.set)
        rng = random.Random(f"{seed} {name}")
        await asyncio.gather(
            *(
                program.task(rng, ports, long=number < _LONG_TASKS, unary=number >= world.tasks - world.unary)
                for number in range(world.tasks)
            )
        )
    journal.note("bye")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
