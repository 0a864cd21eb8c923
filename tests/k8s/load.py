"""A client under load, run in a pod: `python -c SOURCE SECONDS TASKS`, or until SIGTERM. No test imports this.

Each task runs programs, one after the other, each under a lease of its own, through the names of the deployment.
A program says when it begins and when it ends, by the clock of the machine, which all pods share. Every run is a line
of JSON on stdout: {"begin", "end", "served_by", "error", "asked", "answered"}; times in seconds, null where unknown.

With `--stream` output is read as it is written. With `--again` a program that the executor could not begin, because it
does not reach the limiter or the lease is gone, is sent again under a new lease, as the tools of rollouts do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

from executor_service import ExecutionResult, ExecutorClient, ExecutorUnavailable, LeaseRefused, Program
from fairbox.errors import FairboxError
from limiter import LimiterClient, LimiterError

CODE = """
import time
print(time.time(), flush=True)
time.sleep(0.4)
print(time.time())
"""
QUEUE_S = CALL_S = float(os.environ.get("LOAD_DEADLINE_S", "60"))


async def once(limiter: LimiterClient, executor: ExecutorClient, since: float | None = None) -> dict[str, object]:
    """One program. `since`: when it was first asked for."""
    asked, begin, end, served_by, error, text = since or time.time(), None, None, "", "", b""
    try:
        async with limiter.lease(bucket="code", queue_timeout=QUEUE_S) as lease:
            if "--stream" in sys.argv:
                async with contextlib.aclosing(
                    executor.stream(Program(code=CODE, lease=lease), call_timeout=CALL_S)
                ) as events:
                    async for event in events:
                        if isinstance(event, ExecutionResult):
                            result = event
                        else:
                            text += event.data
                            begin = float(text.split()[0]) if b"\n" in text else None
            else:
                result = await executor.execute(CODE, lease=lease, call_timeout=CALL_S)
                text = result.stdout.data
        served_by = result.served_by
        if result.outcome.value != "FINISHED":
            error = f"{result.outcome.value} {result.cause.value} {result.message}"
        else:
            begin, end = map(float, text.split())
    except (ExecutorUnavailable, LeaseRefused, LimiterError) as problem:
        if "--again" in sys.argv and begin is None and time.time() < asked + QUEUE_S:
            await asyncio.sleep(0.5)
            return await once(limiter, executor, asked)
        error = f"{type(problem).__name__}: {problem}"
    except FairboxError as problem:
        error = f"{type(problem).__name__}: {problem}"
    return {
        "begin": begin,
        "end": end,
        "served_by": served_by,
        "error": error,
        "asked": asked,
        "answered": time.time(),
    }


async def main(seconds: float, tasks: int) -> None:
    """Ends after so long or at SIGTERM; everything that runs is waited for."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_later(seconds, stop.set)
    limiter_target, executor_target = os.environ["ROLLOUT_LIMITER"], os.environ["ROLLOUT_EXECUTOR"]

    async def task() -> None:
        while not stop.is_set():
            sys.stdout.write(json.dumps(await once(limiter, executor)) + "\n")

    async with LimiterClient(limiter_target) as limiter, ExecutorClient(executor_target) as executor:
        sys.stdout.write("ready\n")
        await asyncio.gather(*(task() for _ in range(tasks)))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), int(sys.argv[2])))
