"""The pool's end of a worker process: starts it, sends it functions, and kills it.

Invariants: a process runs one function at a time; it is known to be dead, with its process group killed, before
`kill()` returns; a process that failed in any way is never used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from limiter.pool.errors import FunctionFailed, WorkerDied
from limiter.pool.message import LENGTH_BYTES, dumps, loads, pack
from limiter.pool.outcome import Outcome

__all__ = ["WorkerProcess", "request"]

_START_WITHIN_S = 60.0
"""A loaded machine takes seconds to start an interpreter; one that takes longer than this does not start at all."""
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from limiter.pool.worker import serve; serve({descriptor}, {parent}, {most})"
)


class WorkerProcess:
    """One process. `start()`, `run()` functions, `kill()`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._signalled = False

    @property
    def usable(self) -> bool:
        """Whether it was started and nothing has gone wrong since."""
        return self._process is not None and self._process.returncode is None and not self._signalled

    async def start(self) -> None:
        """Returns when it waits for functions. WorkerDied when it does not come to that."""
        ours, theirs = socket.socketpair()
        with theirs:
            program = _PROGRAM.format(
                path=sys.path, descriptor=theirs.fileno(), parent=os.getpid(), most=self._max_bytes
            )
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            # A session of its own: Ctrl-C does not reach it, and its children can be killed with it.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                program,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(_START_WITHIN_S):
                await self._message()
        except TimeoutError:
            raise WorkerDied(f"the worker process did not start within {_START_WITHIN_S:.0f} s") from None

    async def run(self, message: bytes) -> Outcome:
        """What became of the function of a `request()`. WorkerDied when the process ends first. If it is cancelled, or
        raises, the process must be killed."""
        assert self._process is not None
        assert self._writer is not None
        self._writer.write(message)
        with contextlib.suppress(ConnectionError):  # its end shows at once when reading
            await self._writer.drain()
        data = await self._message()
        try:
            value, error, text = loads(data)
        except Exception as problem:
            return Outcome(error=FunctionFailed(f"the function's result can't be unpickled here: {problem}"))
        if error is not None and text:
            error.add_note(f"in worker process {self._process.pid}:\n{text}")
        return Outcome(value, error)

    def signal(self) -> None:
        """Sends the kill to the process and its group, without waiting. Idempotent."""
        process = self._process
        if process is not None and not self._signalled:
            self._signalled = True
            # Also when it has ended by itself: its children may run on.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """Kills it, and returns when it is dead: whoever waits for that must not go on before. Idempotent."""
        self.signal()
        if self._process is not None:
            await self._process.wait()
        if self._writer is not None:
            self._writer.close()

    async def _message(self) -> bytes:
        """The next message. WorkerDied when the process ends, although its children may keep the socket open."""
        assert self._process is not None
        reading = asyncio.create_task(self._read())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not reading.done():
                await asyncio.wait([reading], timeout=0.1)  # what it wrote before its end
            if reading.done() and reading.exception() is None:
                return reading.result()
            await ended
        finally:
            for task in (reading, ended):
                task.cancel()
            await asyncio.wait([reading, ended])
            if not reading.cancelled():
                reading.exception()
        raise WorkerDied(f"worker process {self._process.pid} {_how(self._process.returncode)}")

    async def _read(self) -> bytes:
        assert self._reader is not None
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        return await self._reader.readexactly(length)


def request(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, max_bytes: int) -> bytes:
    """The message that asks for a run. FunctionFailed when it can't be made."""
    try:
        data = dumps((function, args, kwargs))
    except Exception as error:
        raise FunctionFailed(f"the function and its arguments can't be pickled: {error}") from error
    return pack(data, max_bytes)


def _how(code: int | None) -> str:
    if code is None:
        return "closed its socket"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"exited with {code}"
