"""An asyncio event loop on virtual time, shared by processes that have clocks of their own and can be stopped.

Every callback belongs to the process in whose context it was made: `loop.time()` is that process's clock, timers fire
by it, and callbacks of a stopped process wait until it goes on. Nothing waits for real: time jumps to the next timer.
The order of callbacks depends on nothing but the program, so the same program runs the same way each time.

Not done: I/O, threads, signals, subprocesses.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVarTuple, Unpack

from tests.limiter.sim.clock import MachineClock

_Ts = TypeVarTuple("_Ts")
_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
_TICK_S = 1e-9
"""Time passes with every timer, so that whoever waits for a moment finds it passed, whatever rounding does."""
_MOST_STEPS = 100_000
_MOST_STEPS_IN_S = 0.001
"""A program that runs so many callbacks in so little time runs in circles."""


class Process:
    """One simulated process: a clock, and whether it runs. Make its tasks with `SimLoop.spawn`."""

    def __init__(self, name: str, clock: MachineClock) -> None:
        self.name = name
        self.clock = clock
        self.stopped = False
        self.stopped_for = 0.0
        """True seconds in which it did not run, in all."""
        self.stopped_at = 0.0
        self.dead = False
        """Killed: what its tasks still do on their way out reaches nobody."""
        self.context = Context()
        self.context.run(_PROCESS.set, self)
        self.frozen: list[_Handle | _Timer] = []

    def __repr__(self) -> str:
        return self.name


class _Handle(asyncio.Handle):
    __slots__ = ("message", "process")
    process: Process | None
    message: bool


class _Timer(asyncio.TimerHandle):
    __slots__ = ("message", "process")
    process: Process | None
    message: bool


class SimLoop(asyncio.BaseEventLoop):
    """Use it as any loop; without a process, `time()` is true time, from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.true_time = 0.0
        self._soon: deque[_Handle | _Timer] = deque()
        self._later: list[tuple[float, int, _Timer]] = []
        self._count = 0
        self._steps = 0
        self._counted_from = 0.0
        self._nobody = Context()

    def time(self) -> float:
        """Reading of the running process's clock."""
        process = _PROCESS.get()
        return self.true_time if process is None else process.clock.at(self.true_time)

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Runs the callback in turn, in the process of its context."""
        return self._call_soon_in(callback, args, context if context is not None else copy_context())

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """`delay` is in seconds of the process of the context."""
        context = context if context is not None else copy_context()
        process = context.get(_PROCESS)
        return self._call_true_at(
            self.true_time + (delay if process is None else delay / process.clock.rate), callback, args, context
        )

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """`when` is a time of the process of the context."""
        context = context if context is not None else copy_context()
        process = context.get(_PROCESS)
        return self._call_true_at(when if process is None else process.clock.when(when), callback, args, context)

    # Processes

    def spawn(self, process: Process, make: Callable[[], Any]) -> asyncio.Task[Any]:
        """Runs the coroutine that `make()` returns as a task of the process."""
        return self.create_task(process.context.run(make), context=process.context.copy())

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Runs the callback after true seconds, outside of any process."""
        self._call_true_at(self.true_time + delay, callback, args, self._nobody)

    def hand_over(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """A message has arrived at a process: runs the callback there, when it runs."""
        self._call_soon_in(callback, args, process.context, message=True)

    def stop_process(self, process: Process) -> None:
        """Nothing of it runs from now on; its clock goes on."""
        process.stopped, process.stopped_at = True, self.true_time

    def resume_process(self, process: Process, order: str = "as they came") -> None:
        """Runs what has waited: `as they came`, or `messages first`, or `timers first`."""
        process.stopped = False
        process.stopped_for += self.true_time - process.stopped_at
        frozen, process.frozen = process.frozen, []
        if order != "as they came":
            last = order == "timers first"
            frozen.sort(key=lambda handle: handle.message is last)
        self._soon.extend(frozen)

    # Internal

    def _call_soon_in(
        self, callback: Callable[..., object], args: Any, context: Context, *, message: bool = False
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.process, handle.message = context.get(_PROCESS), message
        self._soon.append(handle)
        return handle

    def _call_true_at(
        self, when: float, callback: Callable[..., object], args: Any, context: Context
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.process, timer.message = context.get(_PROCESS), False
        self._count += 1
        heapq.heappush(self._later, (when, self._count, timer))
        return timer

    def _run_once(self) -> None:
        if not self._soon:
            self._advance()
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise RuntimeError(f"time hardly passes any more: {self._soon[0]!r} and others run over and over")
        handle = self._soon.popleft()
        if handle.cancelled():
            return
        if handle.process is not None and handle.process.stopped:
            handle.process.frozen.append(handle)
            return
        handle._run()

    def _advance(self) -> None:
        while self._later:
            when, _, timer = heapq.heappop(self._later)
            if not timer.cancelled():
                self.true_time = max(when, self.true_time) + _TICK_S
                if self.true_time > self._counted_from + _MOST_STEPS_IN_S:
                    self._counted_from, self._steps = self.true_time, 0
                self._soon.append(timer)
                return
        raise RuntimeError("everybody waits and no timer is set")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no I/O."""

    def _write_to_self(self) -> None:
        """There are no threads."""
