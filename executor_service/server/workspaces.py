"""Workspaces of this server: prepared once, whoever asks and how often, kept while used, removed when not.

Invariants: the same preparation is never done twice at once; it ends when nobody waits for it any more; a workspace is
in the table when, and only when, its folder is whole; it is not removed while a call or a sandbox holds it. git runs in
processes of their own, with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from executor_service.cleanup import to_the_end
from executor_service.config import ExecutorConfig
from executor_service.core.workspaces import WorkspaceStatistics, WorkspaceTable
from executor_service.sandbox.report import WorkspaceMount
from executor_service.server.flights import Flight
from executor_service.server.runs import Draining
from executor_service.server.workspace_folder import WorkspaceFolder
from executor_service.server.workspace_request import PrepareRequest
from executor_service.workspaces.spec import workspace_id
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors

if TYPE_CHECKING:
    from executor_service.workspaces.spec import Answer, Facts, Spec

_PROGRAM = Path(__file__).parents[1] / "workspaces" / "bootstrap.py"
_PYTHON = os.path.realpath(sys.executable)
_AT_ONCE = 2
"""Preparations at once; more wait within their deadline. Each is bounded by the disk and by one processor."""
_QUEUE_TIMEOUT_S = 3600.0
"""Longest wait of a preparation for those before it."""
_TICK_S = 2.0
"""Between two looks at what has become idle."""


class UnknownWorkspace(Exception):  # noqa: N818 - a fact about a request
    """This server has no workspace of that id."""


class SourceUnreachable(Exception):  # noqa: N818 - a fact about another service
    """The remote did not give what was asked for, or what was there went at that moment: asking again may help."""


class PreparationTimeout(Exception):  # noqa: N818 - a decision
    """It took longer than workspace_timeout_s, or waited an hour for those before it."""


class PreparationFailed(Exception):  # noqa: N818 - a fact
    """A fault of ours, or of the disk."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workspace that is ready."""

    facts: Facts
    cached: bool


@asynccontextmanager
async def open_workspaces(config: ExecutorConfig, clock: Clock) -> AsyncIterator[Workspaces]:
    """The workspaces that the configuration asks for. ConfigError when their folder can't be used."""
    folder = WorkspaceFolder(config.workspace_dir)
    async with Workspaces(
        folder,
        clock,
        git=shutil.which("git", path="/usr/local/bin:/usr/bin:/bin") or "",
        roots=tuple(config.workspace_roots),
        most_bytes=config.workspace_bytes,
        timeout_s=config.workspace_timeout_s,
    ) as workspaces:
        yield workspaces


class Workspaces:
    """`async with Workspaces(...) as workspaces: await workspaces.prepare(request)`."""

    def __init__(
        self,
        folder: WorkspaceFolder,
        clock: Clock,
        *,
        git: str,
        roots: tuple[str, ...],
        most_bytes: int,
        timeout_s: float,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._git = git
        self._roots = roots
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._table = WorkspaceTable(most_bytes=most_bytes)
        self._facts: dict[str, Facts] = {}
        self._flights: dict[tuple[str, ...], Flight[Prepared]] = {}
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._mirrors = asyncio.Lock()
        """One remote at a time: git locks its repository, and a killed git leaves its lock behind."""
        self._tasks = asyncio.TaskGroup()
        self._sweeper: asyncio.Task[None] | None = None
        self.prepared = 0
        """Preparations done so far."""
        self.hits = 0
        """Calls answered so far with what was there."""

    async def __aenter__(self) -> Workspaces:
        found = await asyncio.to_thread(self._folder.load)
        now = self._clock.now()
        for facts in sorted(found, key=lambda facts: facts["disk_bytes"]):
            name = facts["workspace_id"]
            if self._table.statistics().bytes + facts["disk_bytes"] <= self._most_bytes:
                self._table.add(name, facts["disk_bytes"], facts["idle_ttl_s"], now)
                self._facts[name] = facts
            else:
                await asyncio.to_thread(self._folder.discard, self._folder.take_away(name))
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.create_task(self._sweep(), name="workspaces")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for flight in self._flights.values():
            flight.cancel()
        try:
            # Without the error of the block, which would become a group: it is not one of these tasks'.
            await self._tasks.__aexit__(None, None, None)
        finally:
            await to_the_end(asyncio.to_thread(self._folder.close))

    async def prepare(self, request: PrepareRequest) -> Prepared:
        """The workspace that `request` asks for, made now if it is not there.

        Raises FieldErrors, StoreFull, SourceUnreachable, PreparationTimeout, PreparationFailed and Draining.
        Cancelling the last call that waits for a preparation ends it.
        """
        if known := self._known(request):
            self._table.asked_again(known["workspace_id"], request.idle_ttl_s, self._clock.now())
            self.hits += 1
            return Prepared(known, cached=True)
        if not self._git:
            raise FieldErrors([FieldError("commit", "is set, but git is not installed on this server")])
        key = request.key()
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(lambda _: self._landed(key, flight))
            flight.begin(self._tasks, lambda: self._fly(request), Draining, "preparation")
        try:
            prepared = await flight.wait()
        finally:
            if flight.given_up:
                self._landed(key, flight)  # whoever comes now begins anew
        self.hits += prepared.cached
        if (name := prepared.facts["workspace_id"]) in self._table:
            self._table.asked_again(name, request.idle_ttl_s, self._clock.now())
        return prepared

    def _landed(self, key: tuple[str, ...], flight: Flight[Prepared] | None) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    @contextmanager
    def hold(self, name: str, most_bytes: int = 0) -> Iterator[WorkspaceMount | None]:
        """Keeps a workspace where it is. None for an empty name. Raises UnknownWorkspace.

        `most_bytes` bounds a copy of it, where it can't be mounted.
        """
        if not name:
            yield None
            return
        facts = self.facts(name)
        self._table.hold(name, self._clock.now())
        try:
            yield WorkspaceMount(f"{name}/tree", facts["mount_path"], most_bytes=most_bytes)
        finally:
            self._table.release(name, self._clock.now())

    def facts(self, name: str) -> Facts:
        """What is kept of a workspace beside its files. Raises UnknownWorkspace."""
        if name not in self._table:
            raise UnknownWorkspace(f"this server has no workspace {name!r}: prepare it here, or send the run elsewhere")
        return self._facts[name]

    @property
    def preparing(self) -> int:
        """Preparations in flight, or waiting for their turn."""
        return len(self._flights)

    def statistics(self) -> WorkspaceStatistics:
        return self._table.statistics()

    @property
    def store(self) -> str:
        """The folder of the host that mounts are below."""
        return str(self._folder.ready)

    def _known(self, request: PrepareRequest) -> Facts | None:
        """A commit whose whole hash is given names its workspace by itself."""
        if len(request.commit) not in (40, 64):
            return None
        return self._facts.get(workspace_id(request.commit, request.mount_path))

    async def _fly(self, request: PrepareRequest) -> Prepared:
        async with contextlib.AsyncExitStack() as stack:
            await self._turn(stack, request)
            async with _deadline(self._timeout_s, "took"):
                return await self._make(request)

    async def _turn(self, stack: contextlib.AsyncExitStack, request: PrepareRequest) -> None:
        """Waits for the preparations before this one, whose time is not its own."""
        async with _deadline(_QUEUE_TIMEOUT_S, "waited for others"):
            if request.kind == "remote":
                await stack.enter_async_context(self._mirrors)
            await stack.enter_async_context(self._free)

    async def _make(self, request: PrepareRequest) -> Prepared:
        made = self._folder.new()
        bundle = made.with_suffix(".bundle")
        try:
            source = request.source
            if request.kind == "bundle":
                await asyncio.to_thread(bundle.write_bytes, request.bundle)
                source = str(bundle)
            answer = await self._run(self._spec(request, source, made))
            if "error" in answer:
                _raise(answer)
            facts = answer["facts"]
            name = facts["workspace_id"]
            now = self._clock.now()
            if name in self._table:
                self._table.asked_again(name, request.idle_ttl_s, now)
                return Prepared(self._facts[name], cached=True)
            if not answer["made"]:
                raise SourceUnreachable("the workspace was removed while it was looked for; ask again")
            # From here on without a pause: nobody sees a workspace in the table whose folder is not there.
            victims = self._table.add(name, facts["disk_bytes"], request.idle_ttl_s, now)
            gone = [self._take_away(victim) for victim in victims]
            try:
                self._folder.finish(made, name)
            except OSError as error:
                self._table.drop(name)
                raise PreparationFailed(f"the workspace can't be put into its place: {error}") from None
            self._facts[name] = facts
            self.prepared += 1
            for away in gone:
                await asyncio.to_thread(self._folder.discard, away)
            return Prepared(facts, cached=False)
        finally:
            await to_the_end(asyncio.to_thread(self._folder.discard, made))

    def _spec(self, request: PrepareRequest, source: str, made: Path) -> Spec:
        mirror = self._folder.mirror(hashlib.sha256(request.source.encode()).hexdigest()[:32])
        return {
            "kind": request.kind,
            "source": source,
            "commit": request.commit,
            "mount_path": request.mount_path,
            "idle_ttl_s": request.idle_ttl_s,
            "roots": list(self._roots),
            "ready": str(self._folder.ready),
            "folder": str(made),
            "mirror": str(mirror),
            "most_bytes": self._most_bytes,
            "cpu_s": math.ceil(self._timeout_s),
            "git": self._git,
        }

    async def _run(self, spec: Spec) -> Answer:
        """Runs one preparation. Nothing of it runs any more when this returns, or is cancelled."""
        process = await asyncio.create_subprocess_exec(
            _PYTHON,
            *("-I", "-S", str(_PROGRAM)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
        try:
            out, said = await process.communicate(json.dumps(spec).encode())
        finally:
            await to_the_end(_end(process))
        try:
            answer: Answer = json.loads(out)
        except ValueError:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise PreparationFailed(f"the preparation ended with {process.returncode}: {last}") from None
        if spec["kind"] == "remote" and await asyncio.to_thread(self._folder.mirror_bytes) > self._most_bytes:
            await asyncio.to_thread(self._folder.clear_mirrors)
        return answer

    def _take_away(self, name: str) -> Path:
        """Of a workspace that is not in the table any more: the folder that is to be discarded."""
        del self._facts[name]
        return self._folder.take_away(name)

    async def _sweep(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_TICK_S)
                gone = [self._take_away(name) for name in self._table.expire(self._clock.now())]
                for away in gone:
                    await asyncio.to_thread(self._folder.discard, away)


@contextlib.asynccontextmanager
async def _deadline(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise PreparationTimeout(f"the preparation {what} longer than {seconds:g} s") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the whole session, git included. One that has ended by itself has waited for every git."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _raise(answer: Answer) -> NoReturn:
    if answer["field"]:
        raise FieldErrors([FieldError(answer["field"], answer["error"])])
    if not answer.get("reachable", True):
        raise SourceUnreachable(answer["error"])
    raise PreparationFailed(answer["error"])
