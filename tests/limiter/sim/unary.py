"""Unary calls over the simulated network, as the service serves them over gRPC: the core's end of them is in use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from limiter.core.effects import Granted, Released
from limiter.core.events import Acquire, Cancel
from limiter.server.core_runner import CoreRunner
from limiter.v1 import limiter_pb2 as pb
from tests.limiter.sim.connection import Broken, End
from tests.limiter.sim.transport import serve_session

_FIRST_WITHIN_S = 10.0
FORGER = "client-forger"
"""Prefix of the names of clients that make claims up, and the name that they give."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a call: a grant, or the reason why there is none; empty for a release."""

    granted: Granted | None = None
    refused: str = ""


async def serve_any(end: End, runner: CoreRunner) -> None:
    """Serves a session or one unary call, whichever comes first."""
    try:
        async with asyncio.timeout(_FIRST_WITHIN_S):
            first = await end.receive()
    except (Broken, TimeoutError):
        end.abort()
        return
    if isinstance(first, pb.SessionRequest):
        end.put_back(first)
        await serve_session(end, runner, forged=first.hello.name == FORGER)
        return
    try:
        await end.send(await _call(first, end, runner))
        end.finish()
        end.fail()
    except Broken:
        pass
    finally:
        end.abort()


async def _call(call: Acquire | Cancel, end: End, runner: CoreRunner) -> Answer:
    """Ends like a gRPC handler: cancelled when its caller goes away. Broken then."""
    if runner.closed:
        return Answer(refused="the limiter is shutting down")
    if isinstance(call, Cancel):
        answered = [effect for effect in runner.apply(call) if isinstance(effect, Released)]
        return Answer(refused="" if answered else "the limiter does not lead")
    acquiring, gone = asyncio.create_task(runner.unary.acquire(call)), asyncio.create_task(end.receive())
    try:
        await asyncio.wait([acquiring, gone], return_when=asyncio.FIRST_COMPLETED)
        if not acquiring.done():
            raise Broken("the caller has gone")
        ending = acquiring.result()
        return Answer(ending) if isinstance(ending, Granted) else Answer(refused=ending.reason)
    finally:
        for task in (acquiring, gone):
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
