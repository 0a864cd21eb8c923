"""A sandbox that answers frames, as grading needs it.

Invariants: when the block of `guest_process` is left, every process of the worker is dead; its channel holds a
bounded number of unread bytes; a frame beyond the bounds ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from executor_service.guest.serve.values import MAX_BYTES
from executor_service.model import Limits, Output
from executor_service.sandbox.channel import Channel
from executor_service.sandbox.checkout import SandboxRun
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import NO_END_S, Killed, Plan, Report, SandboxFailure, counts_of

Head = dict[str, Any]
_EXIT_WITHIN_S = 2.0
"""Between the end of a worker's channel and that of its process; if it takes longer, how it ends is not known."""
_END_WITHIN_S = 10.0
"""Between the order to kill everything in a box and its fulfilment."""


@asynccontextmanager
async def guest_process(boxes: SandboxPool, plan: Plan) -> AsyncIterator[GuestProcess]:
    """A process for `plan`, which is confined, has its files, and waits for `start`. SandboxFailure when there is
    none."""
    async with boxes.take(plan) as sandbox:
        yield GuestProcess(sandbox)


class GuestProcess:
    """A worker."""

    def __init__(self, sandbox: SandboxRun) -> None:
        self._sandbox = sandbox
        self._channel: Channel | None = None
        self._killed = Killed.NOT
        self._silent = False
        """The channel has ended as it does when the worker ends."""
        self._exited: Head | None = None
        """The worker ended by itself."""
        self._ended: Head | None = None
        """Everything in the box is dead."""
        self._starved_s: float | None = None

    async def start(self) -> None:
        """Lets it begin, under a lease."""
        self._sandbox.hold_lease()
        self._sandbox.streams.on_flood = lambda: self.kill(Killed.OUTPUT)
        self._channel = await self._sandbox.serve(MAX_BYTES)

    async def send(self, head: Head, blob: bytes = b"") -> None:
        """Returns when the worker's socket has taken it; nothing happens when the worker has ended."""
        assert self._channel is not None
        with contextlib.suppress(ConnectionError):  # receive() tells
            await self._channel.send(head, blob)

    async def receive(self) -> tuple[Head, bytes] | None:
        """The next frame; None when it has ended or has sent what is no frame."""
        assert self._channel is not None
        frame = await self._channel.receive()
        self._silent = frame is None and not self._channel.wrong
        return frame

    @contextlib.contextmanager
    def counted(self, limits: Limits, after_s: float) -> Iterator[None]:
        """Allows it the CPU time of `limits` for what it does in the block, if that takes longer than `after_s`."""
        loop, orders = asyncio.get_running_loop(), self._sandbox.orders
        timer = loop.call_later(after_s, orders.allow, limits)
        try:
            yield
        finally:
            timer.cancel()
            if timer.when() <= loop.time():
                orders.allow(replace(limits, cpu_time_s=NO_END_S))

    def take_output(self) -> tuple[Output, Output]:
        """Standard output and standard error since the last call."""
        return self._sandbox.streams.take()

    async def starved_s(self, within_s: float) -> float:
        """Seconds that it, or a process below it, has waited for a processor; 0 if that is not known in time."""
        self._starved_s = None
        self._sandbox.orders.ask_starved(0)
        with contextlib.suppress(TimeoutError):
            await self._events(within_s, until=lambda: self._starved_s is not None)
        return self._starved_s or 0.0

    def kill(self, reason: Killed) -> None:
        """Ends it; the first reason stays."""
        if self._killed is Killed.NOT:
            self._killed = reason
            self._sandbox.orders.end()

    async def end(self) -> Report:
        """Ends it if it still lives, and says what it did."""
        if self._silent and self._killed is Killed.NOT:
            with contextlib.suppress(TimeoutError):
                await self._events(_EXIT_WITHIN_S, until=lambda: self._exited is not None)
        if self._ended is None:
            self._sandbox.orders.end()
            try:
                await self._events(_END_WITHIN_S)
            except TimeoutError:
                raise SandboxFailure("box", 0, "it did not end when it was told to", started=True) from None
        assert self._ended is not None
        return self._report(self._ended, self._exited or self._ended)

    async def _events(self, within_s: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Takes events in until everything is dead, or `until` is true. TimeoutError, SandboxFailure."""
        async with asyncio.timeout(within_s):
            while self._ended is None and not until():
                event = await self._sandbox.event()
                match event:
                    case {"type": "exited", "main": True}:
                        self._exited = event
                    case {"type": "ended"}:
                        self._ended = event
                    case {"type": "starved", "seconds": seconds}:
                        self._starved_s = seconds
                    case {"type": "failed"} if event is not None:
                        raise SandboxFailure(event["stage"], event["errno"], event["error"], started=False)
                    case None | {"type": "dead"}:
                        raise SandboxFailure("box", 0, "it ended without a word", started=True)

    def _report(self, ended: Head, ways: Head) -> Report:
        self._sandbox.streams.drain()
        stdout, stderr = self._sandbox.streams.outputs()
        return Report(
            killed=self._killed if ended["reason"] == "asked" else Killed(ended["reason"]),
            code=ways["code"],
            signal=ways["signal"],
            stdout=stdout,
            stderr=stderr,
            outside_kills=self._sandbox.host.killed_outside(ended, ways["signal"], ended["wall_s"]),
            **counts_of(ended),
        )
