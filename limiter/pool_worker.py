"""Workers that a pool runs functions in: threads, processes and tasks of Ray, and the messages between both ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

from fairbox.errors import FairboxError
from limiter.client.lease import outcome_of
from limiter.core.reasons import ReleaseOutcome

T = TypeVar("T")
Outcome = tuple[Any, BaseException | None, ReleaseOutcome]
"""A function's value, or what it raised; and how the work ended, which is read where it was raised: what lies behind an
exception does not travel."""
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A pickled function with its arguments or result: far above ordinary ones, and a few fit into memory."""
_START_WITHIN_S = 60.0
"""A loaded machine takes seconds to start an interpreter; one that takes longer than this does not start at all."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from limiter.pool_worker import serve; serve({}, {})"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_WITHIN_S = 10.0
"""For the processes that a function has left: killing them takes no longer unless the machine is at its end."""


class PoolError(FairboxError):
    """Base of what a pool raises. Waiting for the limiter raises the errors of `limiter` instead."""


class PoolClosed(PoolError):
    """The pool is not open. The function was not started, or was ended with the pool."""


class PoolFull(PoolError):
    """As many runs wait in the pool as may. The function was not started."""


class RunTimeout(PoolError, TimeoutError):
    """The function ran for longer than its `timeout`. A process or task was killed; a thread runs on, and its lease
    stays held until it ends."""


class LeaseLost(PoolError):
    """The limiter took the lease back, or could not be reached for so long that it may: the worker was killed."""


class WorkerDied(PoolError):
    """The worker ended while it ran the function, or could not be started; the text says how. Another one takes its
    place."""


class FunctionFailed(PoolError):
    """The function raised what can't be raised here as itself: an exception that can't be pickled or that ends
    programs (SystemExit), or its arguments or result can't be pickled or are too large. The text says which."""


class WorkerProcess:
    """A process that runs one function after the other. One that failed in any way is never used again.

    It is started as `python -c`: multiprocessing would run the program's main module again.
    """

    def __init__(self) -> None:
        """Starts it, from the thread of the pool's loop, with which it dies."""
        self._connection, theirs = multiprocessing.Pipe()
        descriptor, self._stopped = theirs.fileno(), False
        program = _PROGRAM.format(descriptor, os.getpid(), path=sys.path)
        with theirs:
            # A session of its own: Ctrl-C does not reach it, and its children can be killed with it.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        self.name = f"worker process {self._process.pid}"

    @property
    def usable(self) -> bool:
        """True if nothing has gone wrong since it was started."""
        return not self._stopped and not self._ended(os.WNOHANG)

    def run(self, message: bytes) -> bytes:
        """Waits for the answer to a request. WorkerDied when the process ends first."""
        try:
            self._connection.send_bytes(message)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            self._ended()
            self.kill()
            code = self._process.returncode
            how = f"exited with {code}"
            with contextlib.suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
            raise WorkerDied(f"{self.name} {how}") from None

    def stop(self) -> None:
        """Sends the kill to the process and its group, without waiting; `run()` ends when it is dead. Idempotent."""
        if not self._stopped:
            self._stopped = True
            # Also when it has ended by itself: its children may run on. It was not reaped, so its number is its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _ended(self, options: int = 0) -> bool:
        """Says whether it has ended, without reaping it; waits for that where `options` doesn't hold WNOHANG."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Kills it, and returns when it is dead. Idempotent."""
        self.stop()
        self._process.wait()
        self._connection.close()


class RayTask:
    """A task of Ray that runs one function. Ray chooses its machine and starts its process."""

    name = "a task of Ray"
    _reference: Any = None

    def run(self, message: bytes) -> bytes:
        """Waits for the answer to a request. WorkerDied when Ray says that the task has ended otherwise."""
        import ray

        try:
            self._reference = ray.remote(max_retries=0)(_execute).remote(message)
            return cast("bytes", ray.get(self._reference))
        except ray.exceptions.RayError as error:
            raise WorkerDied(f"Ray has lost the function: {error}") from None

    def stop(self) -> None:
        """Asks Ray to kill it, without waiting. Ray promises no single try, so it is to be asked again."""
        if self._reference is not None:
            import ray

            ray.cancel(self._reference, force=True)


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Starts a thread for one call: a function that hangs must not keep the program from ending, as one of a
    `ThreadPoolExecutor` does."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def body() -> None:
        try:
            future.set_result(context.run(call))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name="fairbox pool", daemon=True).start()
    return asyncio.wrap_future(future)


async def answer(
    worker: WorkerProcess | RayTask, message: bytes, timeout: float | None, lost: asyncio.Future[Any] | None = None
) -> bytes:
    """A worker's answer to a request. When this raises, the worker is dead: a lease must not be released while it runs,
    so there is no end to that wait. TimeoutError after so many seconds, or when the lease is lost."""
    ending = in_thread(functools.partial(worker.run, message))
    ends: set[asyncio.Future[Any]] = {ending, lost} if lost is not None else {ending}
    in_time = False
    try:
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        in_time = ending.done()
    finally:
        await uninterrupted(ending, worker.stop)
    if not in_time:
        raise TimeoutError
    return ending.result()


async def ready(worker: WorkerProcess) -> None:
    """Returns when a process waits for functions. WorkerDied when it does not come to that."""
    try:
        await answer(worker, request(int), _START_WITHIN_S)
    except TimeoutError:
        raise WorkerDied(f"the worker process did not start within {_START_WITHIN_S:.0f} s") from None


async def uninterrupted(ending: asyncio.Future[Any], stop: Callable[[], None] = lambda: None) -> None:
    """Waits for an end, and raises a cancellation that came meanwhile after it. How it has ended is for the caller to
    ask."""
    cancelled = False
    while not ending.done():
        stop()
        try:
            await asyncio.wait([ending], timeout=1)
        except asyncio.CancelledError:
            cancelled = True
    if not ending.cancelled():
        ending.exception()
    if cancelled:
        raise asyncio.CancelledError


def request(work: Callable[[], Any]) -> bytes:
    """Pickles a call, functions and classes of the main program by value. FunctionFailed when that can't be."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(work)
    except Exception as error:
        raise FunctionFailed(f"the function and its arguments can't be pickled: {error}") from error
    return _bounded(data)


def _bounded(data: bytes) -> bytes:
    if len(data) > MAX_MESSAGE_BYTES:
        raise FunctionFailed(f"a message of {len(data)} bytes is too large, must be at most {MAX_MESSAGE_BYTES}")
    return data


def read(data: bytes, worker: str) -> Outcome:
    """Reads the answer to a request."""
    try:
        value, error, text, ended = pickle.loads(data)  # noqa: S301 - from a process that this one has started
    except Exception as problem:
        failed = FunctionFailed(f"the function's result can't be unpickled here: {problem}")
        return None, failed, ReleaseOutcome.ERROR
    if error is not None:
        error.add_note(f"in {worker}:\n{text}")
    return value, error, ended


def call(work: Callable[[], Any]) -> Outcome:
    """Calls it. What can't be raised in a coroutine, or would end the program there, becomes a FunctionFailed."""
    try:
        return work(), None, ReleaseOutcome.OK
    except BaseException as error:
        ended = outcome_of(error)
        if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
            return None, error, ended
        failed = FunctionFailed(f"the function raised {type(error).__name__}: {error}")
        failed.add_note("".join(traceback.format_exception(error)).rstrip())
        return None, failed, ended


def serve(descriptor: int, parent: int) -> None:
    """Answers requests until the connection ends. The program of a worker process.

    It dies with the pool's process: by the kernel's signal on Linux, and by the end of the connection elsewhere, which
    shows between two functions only.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    os.register_at_fork(after_in_child=connection.close)  # a child that outlives this process must not keep it open
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            answer = _execute(connection.recv_bytes())
            _end_children()
            connection.send_bytes(answer)


def _end_children() -> None:
    """Kills what a function has left, orphans included, because its lease ends with it (Linux). The program of a worker
    that can't ends instead, and its process group with it."""
    deadline = time.monotonic() + _END_WITHIN_S
    while left := _children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(pid, os.WNOHANG) == (0, 0):
                    if time.monotonic() > deadline:
                        os._exit(1)
                    time.sleep(0.001)


def _children() -> list[int]:
    """Processes right below this one, but for the one that multiprocessing removes shared memory by."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    spared = tracker._resource_tracker._pid if tracker is not None else None
    found: list[int] = []
    for each in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found += map(int, each.read_text(encoding="ascii").split())
    return [pid for pid in found if pid != spared]


def _execute(data: bytes) -> bytes:
    """Runs a pickled call; returns its value, its exception and the traceback, pickled."""
    import cloudpickle

    value, error, ended = call(lambda: pickle.loads(data)())  # noqa: S301 - from the process that started this one
    text = "".join(traceback.format_exception(error)).rstrip() if error is not None else ""
    try:
        answer: bytes = _bounded(cloudpickle.dumps((value, error, text, ended)))
        if error is not None:
            pickle.loads(answer)  # noqa: S301 - some exceptions can be pickled but not read again
        return answer
    except Exception as problem:
        if error is not None:
            what = f"the function raised {type(error).__name__}, which can't be sent: {error}"
        elif isinstance(problem, FunctionFailed):
            what = f"the function's result can't be sent: {problem}"
        else:
            what = f"the function's result, a {type(value).__name__}, can't be pickled: {problem}"
        refused: bytes = cloudpickle.dumps((None, FunctionFailed(what[:10_000]), text[-10_000:], ended))
        return refused
