"""The client for code without an event loop: `with Executor() as box: print(box.run("print(1)").stdout.text)`.

A thread drives an `ExecutorClient`; all executors of a process share it, because gRPC has one poller for all.
Invariants: each call is that of the asynchronous client, with its deadline and its errors; a call that is interrupted
(Ctrl-C) is cancelled, which kills its program; the thread ends with the last executor. To be entered after a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar, Unpack

from executor_service.client.client import ExecutorClient
from executor_service.client.program import limits_with
from executor_service.client.sessions import Session
from executor_service.grading.model import Case, VerifyResult
from executor_service.model import ExecutionResult, InputFile, Limits, Snapshot
from executor_service.v1 import executor_pb2 as pb
from fairbox.security import ClientSecurity

T = TypeVar("T")
LOCAL = "127.0.0.1:50051"
"""Address that `fairbox up` listens on."""
_THREAD_WITHIN_S = 10.0
"""For the thread to begin, and to end with what it has cancelled."""


class LimitWords(TypedDict, total=False):
    """The fields of `Limits` but the wall time, which is `timeout`."""

    cpu_time_s: float
    memory_bytes: int
    processes: int
    open_files: int
    output_bytes: int
    file_bytes: int
    disk_bytes: int
    return_bytes: int
    compile_time_s: float


class _SharedLoop:
    """The event loop of all executors of this process, in a thread that lives while one of them is entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._pid = 0
        """The process that has entered one, now or before; 0: none has."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        self._check_process()
        with self._lock:
            if not self._users:
                begun = threading.Event()
                live = self._live(begun)
                self._pid = os.getpid()
                self._thread = threading.Thread(target=asyncio.run, args=(live,), name="executors", daemon=True)
                self._thread.start()
                if not begun.wait(_THREAD_WITHIN_S):
                    raise RuntimeError("the thread of the executors does not start")
            self._users += 1

    async def _live(self, begun: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        begun.set()
        await self._stop.wait()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._stop.set)  # `asyncio.run` then cancels what is left, and waits for it
            self._thread.join(_THREAD_WITHIN_S)
            self._loop = self._thread = None

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the shared loop, and returns its result. Cancels it if the wait is interrupted."""
        try:
            self._check_process()
            if self._loop is None:
                raise RuntimeError("Executor is used outside its `with` block")
        except RuntimeError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _check_process(self) -> None:
        """A forked process has neither the loop's thread nor a gRPC that was used before: it may wait for ever."""
        if self._pid not in (0, os.getpid()):
            raise RuntimeError("this process was forked after an Executor had been entered: fork before, or spawn it")


_shared = _SharedLoop()


class Executor:
    """`target` and `security` as for `ExecutorClient`. Any thread may call it, and several at once."""

    def __init__(self, target: str = LOCAL, *, security: ClientSecurity | None = None) -> None:
        self._client = ExecutorClient(target, security=security)

    def __enter__(self) -> Executor:
        _shared.enter()
        try:
            _shared.do(self._client.__aenter__())
        except BaseException:
            _shared.leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # Without the error: an interruption that is raised in the thread of the loop would end that.
            _shared.do(self._client.__aexit__(None, None, None))
        finally:
            _shared.leave()

    def run(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: bytes | str = b"",
        args: Sequence[str] = (),
        files: Sequence[InputFile] = (),
        return_paths: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        profile: str = "",
        workspace_id: str = "",
        image: str = "",
        user: str = "",
        tenant: str = "",
        timeout: float | None = None,
        **limits: Unpack[LimitWords],
    ) -> ExecutionResult:
        """Runs a program and returns what became of it; `timeout` is what it may take, in seconds, and the other limits
        are those of `Limits` by their names. Errors as of `ExecutorClient.execute`."""
        return _shared.do(
            self._client.execute(
                code,
                language=language,
                stdin=stdin,
                args=args,
                files=files,
                return_paths=return_paths,
                env=env,
                profile=profile,
                workspace_id=workspace_id,
                image=image,
                user=user,
                tenant=tenant,
                timeout=timeout,
                limits=Limits(**limits),
            )
        )

    def verify(
        self,
        code: str,
        cases: Sequence[Case],
        *,
        entry_point: str = "",
        timeout: float | None = None,
        **more: Any,
    ) -> VerifyResult:
        """Grades a candidate. `more` as for `ExecutorClient.verify`."""
        return _shared.do(self._client.verify(code, cases, entry_point=entry_point, timeout=timeout, **more))

    def status(self) -> dict[str, pb.GetStatusResponse]:
        """Status of each server, by its address."""
        return _shared.do(self._client.status())

    @contextmanager
    def session(self, *, timeout: float | None = None, **more: Any) -> Iterator[BlockingSession]:
        """An interpreter that keeps its state, and ends with the block. `timeout` is what a cell may take that names
        none; `more` as for `ExecutorClient.create_session`."""
        if timeout is not None:
            more["limits"] = limits_with(more.get("limits"), timeout)
        session = Session(self._client, _shared.do(self._client.create_session(**more)))
        try:
            yield BlockingSession(session)
        except BaseException as error:
            _shared.do(session.__aexit__(type(error), error, None))  # which raises nothing of it
            raise
        _shared.do(session.delete())


class BlockingSession:
    """Made by `Executor.session()` and `BlockingSession.branch()`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session_id(self) -> str:
        return self._session.session_id

    def run(
        self,
        code: str,
        *,
        stdin: bytes | str = b"",
        files: Sequence[InputFile] = (),
        return_paths: Sequence[str] = (),
        timeout: float | None = None,
        **more: Any,
    ) -> ExecutionResult:
        """Runs the next cell. Ctrl-C interrupts it; the session's state stays. `more` as for `Session.run`."""
        words = {"stdin": stdin, "files": files, "return_paths": return_paths, "timeout": timeout, **more}
        return _shared.do(self._session.run(code, **words))

    def branch(self, count: int = 1) -> list[BlockingSession]:
        """Forks it: each branch goes on from the state of this moment, and lives until it is deleted or idle."""
        return [BlockingSession(each) for each in _shared.do(self._session.branch(count))]

    def snapshot(self) -> Snapshot:
        """Its files as an image, in which programs and sessions can go on."""
        return _shared.do(self._session.snapshot())

    def delete(self) -> bool:
        """Ends it. False: it has ended before."""
        return _shared.do(self._session.delete())
