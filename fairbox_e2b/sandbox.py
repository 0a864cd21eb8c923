"""Sandboxes as E2B has them: a shell session for each, with commands beside its shell, files and interpreters.

Invariants: commands, files and code share one session, and so one folder; a command goes on when nobody listens to it,
until it ends, its time is over, or its sandbox ends; a sandbox ends with its timeout or with this service; what code
does is its result, and what fairbox fails to do is an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
import posixpath
import secrets
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from importlib.resources import files as files_of

import executor_service as fairbox
from executor_service import Cause, ExecutionResult, ExecutorClient, ExecutorError, InputFile, Limits, Outcome, Program
from executor_service import OutputChunk as Chunk
from fairbox.apart import read_apart
from fairbox.errors import FairboxError
from fairbox_e2b import kernel

DEFAULT_CONTEXT = "default"
_DEFAULT_TEMPLATES = ("", "base", "code-interpreter-v1")
"""Templates that the SDKs name by themselves."""
_CALL_S, _LAST_CALL_S, _SHORT_S, _PING_S = 50.0, 5.0, 30.0, 50.0
_OUTPUT_BYTES = 2 << 20
"""Bytes that are kept of each stream of a command."""
_MOST_CONTEXTS = 8
_FOLDER = ".fairbox"
"""Folder for what an interpreter needs, in the session's work folder."""
_NO_PYTHON = 97
"""Exit code of a cell for which there is no interpreter."""
_LOG = logging.getLogger("fairbox_e2b")


class Refused(FairboxError):
    """A request that is answered with a status of HTTP and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Command:
    """A command that was started. Its output is kept as long as somebody listens."""

    def __init__(self, pid: int, config: dict[str, object], seconds: float) -> None:
        self.pid = pid
        self.config = config
        """As the request had it."""
        self.seconds = seconds
        self.chunks: list[Chunk] = []
        self.result: ExecutionResult | None = None
        self.problem = ""
        """Why there is no result, if fairbox failed."""
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def follow(self, start: int = 0) -> AsyncGenerator[Chunk | None, None]:
        """Its output from that chunk on; None if there was none for a while."""
        while True:
            news = self._news
            for chunk in self.chunks[start:]:
                start += 1
                yield chunk
            if self.ended and start == len(self.chunks):
                return
            if news is self._news:
                try:
                    async with asyncio.timeout(_PING_S):
                        await news.wait()
                except TimeoutError:
                    yield None

    async def run(self, executor: ExecutorClient, program: Program) -> None:
        """Runs it to its end. A cancellation kills it."""
        try:
            async with aclosing(executor.stream(program)) as events:
                async for event in events:
                    if isinstance(event, Chunk):
                        self.chunks.append(event)
                    else:
                        self.result = event
                    self._tell()
            if self.result is None or self.result.cause is Cause.INFRA:
                self.problem = f"the sandbox failed: {self.result.message if self.result else 'there is no result'}"
        except ExecutorError as error:
            self.problem = str(error)
        finally:
            self.ended = True
            self._tell()

    def kill(self) -> None:
        """Kills it, if it still runs."""
        if self.task is not None:
            self.task.cancel()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Sandbox:
    """One of them. Made by `Sandboxes.create`."""

    def __init__(self, executor: ExecutorClient, info: fairbox.SessionInfo, most: Limits, template: str) -> None:
        self.sandbox_id = secrets.token_hex(10)
        self.token = secrets.token_hex(16)
        """Whoever has it may use the sandbox."""
        self.template = template
        self.metadata: dict[str, str] = {}
        self.started = datetime.now(UTC)
        self.ends = self.started
        self.commands: dict[int, Command] = {}
        self.contexts = {DEFAULT_CONTEXT: ""}
        """Interpreters and the folders that they begin in; empty: where commands begin."""
        self.session_id = info.session_id
        self.shell = fairbox.ShellSandbox(executor, fairbox.Session(executor, info), most)
        self._executor = executor
        self._most = most
        self._program = partial(Program, language="bash", session_id=info.session_id, beside=True, limits=most)
        self._pids = 0
        self._home = ""
        self._starts = Counter[str]()
        self._starting = asyncio.Lock()

    async def path(self, path: str) -> str:
        """A path as an absolute one."""
        if not self._home:
            self._home = (await self.script("pwd")).stdout.text.strip() or "/"
        return posixpath.normpath(posixpath.join(self._home, path))

    async def script(self, script: str, *arguments: str, user: str = "") -> ExecutionResult:
        """Runs a script of a shell that ends soon."""
        command = f"set -- {shlex.join(arguments)}\n{script}"
        return await self.shell.run(command, user=user, timeout=_SHORT_S, output_bytes=_OUTPUT_BYTES)

    def start(
        self, command: str, config: dict[str, object], *, env: Mapping[str, str], user: str, seconds: float
    ) -> Command:
        """Starts a command. `seconds`, until it is killed; 0: as many as the executor allows."""
        self._pids += 1
        seconds = min(seconds or self._most.wall_time_s, self._most.wall_time_s)
        started = self.commands[self._pids] = Command(self._pids, config, seconds)
        limits = replace(self._most, wall_time_s=seconds)
        program = self._program(code=command or ":", env=env, user=user, limits=limits)
        started.task = asyncio.create_task(started.run(self._executor, program))
        started.task.add_done_callback(lambda _: self.commands.pop(started.pid, None))
        return started

    def add_context(self, folder: str) -> str:
        """Name of a new interpreter, which begins with its first cell."""
        if len(self.contexts) >= _MOST_CONTEXTS:
            raise Refused(429, f"a sandbox has at most {_MOST_CONTEXTS} contexts; remove one of them")
        name = secrets.token_hex(8)
        self.contexts[name] = folder
        return name

    async def end_context(self, name: str) -> None:
        """Ends an interpreter, with its variables; the next cell begins another one."""
        if name not in self.contexts:
            raise Refused(404, f"there is no context {name[:40]!r}")
        await self.script(f'kill -KILL "$(cat /sandbox/{_FOLDER}/{name}.pid)" 2>/dev/null; :')

    async def run_code(self, code: str, context: str, env: Mapping[str, str]) -> AsyncGenerator[Chunk | bytes, None]:
        """Runs a cell: its output as it comes, then lines of JSON with what came of it."""
        if context not in self.contexts:
            raise Refused(404, f"there is no context {context[:40]!r}")
        request = await read_apart(len(code), lambda: json.dumps({"code": code, "envs": dict(env)}).encode())
        program = self._program(
            code=f"command -v python3 >/dev/null || exit {_NO_PYTHON}\n"
            f"exec python3 -IBS /sandbox/{_FOLDER}/kernel.py cell {context}",
            stdin=request,
            files=_kernel_files(),
            return_paths=[f"{_FOLDER}/{context}.result"],
        )
        for _ in range(2):
            starts, result = self._starts[context], None
            async with aclosing(self._executor.stream(program)) as events:
                async for event in events:
                    if isinstance(event, Chunk):
                        yield event
                    else:
                        result = event
            if result is None or result.cause is Cause.INFRA:
                raise Refused(500, f"the sandbox failed: {result.message if result else 'there is no result'}")
            if result.exit_code != kernel.NOT_THERE:
                break
            if (problem := await self._start_kernel(context, starts)) is not None:
                yield _failed("InterpreterFailed", f"the interpreter did not start: {problem}")
                return
        else:
            yield _failed("InterpreterFailed", "the interpreter could not be reached")
            return
        for line in _ending(result):
            yield line

    async def _start_kernel(self, context: str, starts: int) -> str | None:
        """Why there is none: code of the sandbox can have seen to that."""
        async with self._starting:
            if self._starts[context] != starts:
                return None  # another call has started it meanwhile
            self._starts[context] += 1
            folder = shlex.quote(self.contexts[context] or ".")
            result = await self._executor.execute(
                f"python3 -IB /sandbox/{_FOLDER}/kernel.py serve {context} {folder}",
                language="bash",
                session_id=self.session_id,
                beside=True,
                limits=replace(self._most, wall_time_s=_SHORT_S),
            )
        if result.cause is Cause.INFRA:
            raise Refused(500, f"the sandbox failed: {result.message}")
        return result.stderr.text[-500:] or result.message or "it exited" if result.exit_code else None


class Sandboxes:
    """All of them. They end when the block is left."""

    def __init__(
        self, executor: ExecutorClient, *, image: str, memory_mb: int, max_sandboxes: int, max_timeout_s: int
    ) -> None:
        self._executor = executor
        self._image = image
        self._memory_bytes = memory_mb << 20
        self._max_sandboxes = max_sandboxes
        self._max_timeout_s = max_timeout_s
        self._live: dict[str, Sandbox] = {}
        self._making = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Sandboxes:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * _LAST_CALL_S):
                await asyncio.gather(*map(self.end, self), *self._endings)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(list(self._live.values()))

    def find(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox of that id, if it lives."""
        return self._live.get(sandbox_id)

    async def create(
        self, template: str, *, timeout: float, env: Mapping[str, str], metadata: dict[str, str]
    ) -> Sandbox:
        """Makes one, of the image that `template` names. Raises Refused and ExecutorErrors."""
        self._check(timeout)
        if len(self._live) + self._making >= self._max_sandboxes:
            raise Refused(429, f"{self._max_sandboxes} sandboxes live, as many as may: kill one of them")
        self._making += 1
        try:
            allowed = next(iter((await self._executor.status(call_timeout=_CALL_S)).values())).max_limits
            most = Limits(
                wall_time_s=allowed.wall_time_s,
                cpu_time_s=allowed.cpu_time_s,
                output_bytes=min(allowed.output_bytes, _OUTPUT_BYTES),
            )
            info = await self._executor.create_session(
                language="bash",
                image=self._image if template in _DEFAULT_TEMPLATES else template,
                env=env,
                owner="e2b",
                idle_ttl_s=self._max_timeout_s + _SHORT_S,
                limits=replace(most, output_bytes=0, memory_bytes=self._memory_bytes),
                timeout=_CALL_S,
            )
            sandbox = Sandbox(self._executor, info, most, template)
            sandbox.metadata = metadata
            self._live[sandbox.sandbox_id] = sandbox
        finally:
            self._making -= 1
        self.set_timeout(sandbox, timeout)
        return sandbox

    def set_timeout(self, sandbox: Sandbox, timeout: float) -> None:
        """Has a sandbox end that many seconds from now."""
        self._check(timeout)
        self.forget_timer(sandbox)
        sandbox.ends = datetime.now(UTC) + timedelta(seconds=timeout)
        loop = asyncio.get_running_loop()
        self._timers[sandbox.sandbox_id] = loop.call_later(timeout, self._expire, sandbox)

    async def end(self, sandbox: Sandbox) -> None:
        """Ends a sandbox and all that runs in it."""
        self.forget_timer(sandbox)
        self._live.pop(sandbox.sandbox_id, None)
        for command in list(sandbox.commands.values()):
            command.problem = "The sandbox was not found: it has ended"
            command.kill()
        try:
            await self._executor.delete_session(sandbox.session_id, timeout=_LAST_CALL_S)
        except ExecutorError as error:
            _LOG.warning("a sandbox could not be ended, and lives for its idle time: %s", error)

    def forget_timer(self, sandbox: Sandbox) -> None:
        """Takes back the end of a sandbox."""
        if timer := self._timers.pop(sandbox.sandbox_id, None):
            timer.cancel()

    def _expire(self, sandbox: Sandbox) -> None:
        ending = asyncio.ensure_future(self.end(sandbox))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _check(self, timeout: float) -> None:
        if not 0 <= timeout <= self._max_timeout_s:
            raise Refused(400, f"timeout is {timeout}, must be from 0 to {self._max_timeout_s} seconds")


@cache
def _kernel_files() -> list[InputFile]:
    guest, own = files_of("executor_service") / "guest/serve", files_of("fairbox_e2b")
    return [
        InputFile(f"{_FOLDER}/{each.name}", each.read_bytes())
        for each in (own / "kernel.py", guest / "display.py", guest / "evaluate.py")
    ]


def _ending(result: ExecutionResult) -> list[bytes]:
    """Lines about a cell that has ended."""
    lines = []
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        if output.truncated:
            cut = f"[{name} had {output.total_bytes} bytes, of which {len(output.data)} were passed on]\n"
            lines.append(json_line(type="stderr", text=cut, timestamp=0))
    file = result.files[0] if result.files else None
    if result.exit_code == 0 and file is not None and file.status is fairbox.FileStatus.RETURNED:
        return [*lines, file.content]
    if result.exit_code == _NO_PYTHON:
        raise Refused(501, "run_code needs python3 in the sandbox's image")
    if result.outcome is Outcome.TIME_LIMIT:
        name, value = "TimeLimit", f"{result.message}; the cell was interrupted"
    elif result.exit_code == kernel.ENDED:
        name, value = "InterpreterEnded", "the interpreter has ended; the next cell has a new one, without variables"
    elif result.exit_code == 0:
        name, value = "ResultsLost", f"its results could not be read: {file.status if file else 'MISSING'}"
    else:
        name, value = result.outcome.name, result.message
    return [*lines, _failed(name, value)]


def _failed(name: str, value: str) -> bytes:
    return json_line(type="error", name=name, value=value, traceback="")


def json_line(**fields: object) -> bytes:
    """An object of JSON in a line of its own."""
    return json.dumps(fields).encode() + b"\n"
