"""Workspaces of this server: prepared once for a tenant, however often it asks, kept while used, removed when not.

Invariants: an id is random, and its tenant's alone: to others it is like one that was never given; what is there
answers only who names the same source again, a bundle by all its bytes; the same preparation is never done twice at
once; it ends when nobody waits for it any more; a workspace is in the table when, and only when, its folder is whole;
it is not removed while a call or a sandbox holds it. git runs in processes of their own, with a deadline: on what the
operator has named beside the server, on a bundle in a sandbox. No tenant waits for what another has sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import grpc

from executor_service.cleanup import to_the_end
from executor_service.config import ExecutorConfig
from executor_service.errors import ExecutorUnavailable, NotFound
from executor_service.programs.plans import Planner
from executor_service.runs.flights import Flight
from executor_service.runs.queue import Draining
from executor_service.sandbox.pool import SandboxPool
from executor_service.sandbox.report import SandboxFailure, WorkspaceMount
from executor_service.v1 import executor_pb2 as pb
from executor_service.workspaces.bundles import AT_ONCE, MOST_BYTES, MOST_ENTRIES, Adopt, unbundle
from executor_service.workspaces.folder import WorkspaceFolder
from executor_service.workspaces.request import PrepareRequest
from executor_service.workspaces.store import Places, WorkspaceTable
from fairbox.clock import Clock
from fairbox.errors import FieldError, FieldErrors

if TYPE_CHECKING:
    from executor_service.workspaces.prepare.spec import Facts, Identity, PreparationAnswer, PreparationTask, Spec

_PROGRAM = Path(__file__).parent / "prepare" / "bootstrap.py"
_PYTHON = os.path.realpath(sys.executable)
_AT_ONCE = 2
"""Preparations at once of what the operator has named; each is bounded by the disk and by one processor."""
_GIT_BYTES = 8 << 30
"""Address space of one git on what the operator has named."""
_MOST_ENTRIES = 500_000
"""Files and folders of one workspace."""
_QUEUE_TIMEOUT_S = 3600.0
"""Longest wait of a preparation for those before it."""
_TICK_S = 2.0
"""Between two looks at what has become idle."""


class PreparationTimeout(ExecutorUnavailable):
    """The preparation took longer than workspace_timeout_s, or waited an hour for those before it."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class PreparationFailed(ExecutorUnavailable):
    """The workspace can't be prepared: a fault of the executor, or of the disk."""

    code = grpc.StatusCode.INTERNAL


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workspace that is ready."""

    facts: Facts
    cached: bool


@asynccontextmanager
async def open_workspaces(
    config: ExecutorConfig, folder: WorkspaceFolder, clock: Clock, boxes: SandboxPool, planner: Planner
) -> AsyncIterator[Workspaces]:
    """The workspaces that the configuration asks for, in a folder that stays open after them."""
    async with Workspaces(
        folder,
        clock,
        partial(unbundle, boxes, planner),
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
        unbundle: Callable[[PreparationTask, str, int, Adopt], Awaitable[PreparationAnswer]],
        *,
        git: str,
        roots: tuple[str, ...],
        most_bytes: int,
        timeout_s: float,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._unbundle = unbundle
        self._git = git
        self._roots = roots
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._table = WorkspaceTable(most_bytes=most_bytes)
        self._facts: dict[str, Facts] = {}
        self._made: dict[str, dict[str, str]] = {}
        """Source, commit -> id."""
        self._flights: dict[tuple[str, str], Flight[Prepared]] = {}
        self._bundles = Places(most=AT_ONCE, shared=AT_ONCE // 2)
        self._others = Places(most=_AT_ONCE, shared=_AT_ONCE)
        self._adopting = Places(most=_AT_ONCE, shared=1)
        """Places for writing what bundles hold: few at a time, so that there is a bound for the room that all take."""
        self._mirrors = asyncio.Lock()
        """One remote at a time: git locks its repository, and a killed git leaves its lock behind."""
        self._tasks = asyncio.TaskGroup()
        self._sweeper: asyncio.Task[None] | None = None
        self._prepared = 0
        """Preparations done so far."""
        self._hits = 0
        """Calls answered so far with what was there."""

    async def __aenter__(self) -> Workspaces:
        found = await asyncio.to_thread(self._folder.load)
        now = self._clock.now()
        for facts in sorted(found, key=lambda facts: facts["disk_bytes"]):
            name = facts["workspace_id"]
            if self._table.statistics().bytes + facts["disk_bytes"] <= self._most_bytes:
                self._table.add(name, facts["disk_bytes"], facts["idle_ttl_s"], now)
                self._remember(facts)
            else:
                await asyncio.to_thread(self._folder.discard, self._folder.take_away(facts["folder"]))
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.create_task(self._sweep(), name="workspaces")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for flight in self._flights.values():
            flight.cancel()
        # Without the error of the block, which would become a group: it is not one of these tasks'.
        await self._tasks.__aexit__(None, None, None)

    async def prepare(self, request: PrepareRequest) -> Prepared:
        """The workspace that `request` asks for, made now if it is not there.

        Raises FieldErrors, StoreFull, TooManyPreparations, PreparationTimeout, PreparationFailed and Draining, and
        ExecutorUnavailable if the remote did not give what was asked for, or what was there went at that moment.
        Cancelling the last call that waits for a preparation ends it.
        """
        source = await asyncio.to_thread(request.digest)
        if known := self._known(source, request.commit):  # by its whole hash
            self._table.asked_again(known["workspace_id"], request.idle_ttl_s, self._clock.now())
            self._hits += 1
            return Prepared(known, cached=True)
        if not self._git:
            raise FieldErrors([FieldError("commit", "is set, but git is not installed on this server")])
        key = (source, request.commit)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(lambda _: self._landed(key, flight))
            flight.begin(self._tasks, lambda: self._fly(request, source), Draining, "preparation")
        try:
            prepared = await flight.wait()
        finally:
            if flight.given_up:
                self._landed(key, flight)  # whoever comes now begins anew
        self._hits += prepared.cached
        if (name := prepared.facts["workspace_id"]) in self._table:
            self._table.asked_again(name, request.idle_ttl_s, self._clock.now())
        return prepared

    def _landed(self, key: tuple[str, str], flight: Flight[Prepared] | None) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    @contextmanager
    def hold(self, name: str, tenant: str, most_bytes: int = 0) -> Iterator[WorkspaceMount | None]:
        """Keeps a workspace where it is. None for an empty name. Raises NotFound.

        `most_bytes` bounds a copy of it, where it can't be mounted.
        """
        if not name:
            yield None
            return
        facts = self.facts(name, tenant)
        self._table.hold(name, self._clock.now())
        try:
            path = f"{self._folder.ready.name}/{facts['folder']}/tree"
            yield WorkspaceMount(path, facts["mount_path"], most_bytes=most_bytes)
        finally:
            self._table.release(name, self._clock.now())

    def facts(self, name: str, tenant: str) -> Facts:
        """Facts kept of a tenant's workspace beside its files. Raises NotFound."""
        facts = self._facts.get(name)
        if facts is None or facts["tenant"] != tenant:
            raise NotFound(f"this server has no workspace {name!r}: prepare it here, or send the run elsewhere")
        return facts

    def status(self) -> pb.WorkspaceStatus:
        """For GetStatus, but for the bounds of copies."""
        status = self._table.statistics()
        status.preparing, status.prepared_total, status.hits_total = len(self._flights), self._prepared, self._hits
        return status

    def _known(self, source: str, commit: str) -> Facts | None:
        name = self._made.get(source, {}).get(commit)
        return None if name is None else self._facts[name]

    async def _fly(self, request: PrepareRequest, source: str) -> Prepared:
        async with contextlib.AsyncExitStack() as stack:
            await self._turn(stack, request)
            async with _deadline(self._timeout_s, "took"):
                return await self._make(request, source)

    async def _turn(self, stack: contextlib.AsyncExitStack, request: PrepareRequest) -> None:
        """Waits for the preparations before this one, whose time is not its own."""
        async with _deadline(_QUEUE_TIMEOUT_S, "waited for others"):
            if request.kind == "remote":
                await stack.enter_async_context(self._mirrors)
            places = self._bundles if request.kind == "bundle" else self._others
            await stack.enter_async_context(places.take(request.tenant, len(request.bundle)))

    async def _make(self, request: PrepareRequest, source: str) -> Prepared:
        made = self._folder.new()
        try:
            answer = await self._answer(request, source, made)
            if "error" in answer:
                _raise(answer)
            facts = answer.get("facts")
            now = self._clock.now()
            if known := self._known(source, facts["commit"] if facts else answer["commit"]):
                self._table.asked_again(known["workspace_id"], request.idle_ttl_s, now)
                return Prepared(known, cached=True)
            if facts is None:  # it was known when it was asked for
                raise ExecutorUnavailable("the workspace was removed while it was looked for; ask again")
            name = facts["workspace_id"]
            # From here on without a pause: nobody sees a workspace in the table whose folder is not there.
            victims = self._table.add(name, facts["disk_bytes"], request.idle_ttl_s, now)
            gone = [self._take_away(victim) for victim in victims]
            try:
                self._folder.finish(made, facts["folder"])
            except OSError as error:
                self._table.drop(name)
                raise PreparationFailed(f"the workspace can't be put into its place: {error}") from None
            self._remember(facts)
            self._prepared += 1
            for away in gone:
                await asyncio.to_thread(self._folder.discard, away)
            return Prepared(facts, cached=False)
        finally:
            await to_the_end(asyncio.to_thread(self._folder.discard, made))

    async def _answer(self, request: PrepareRequest, source: str, made: Path) -> PreparationAnswer:
        """The preparation's answer; if it has facts, the files are in `made`."""
        identity = _identity(request, source)
        task: PreparationTask = {
            "kind": "sandboxed" if request.kind == "bundle" else request.kind,
            "source": request.source,
            "commit": request.commit,
            "roots": list(self._roots),
            "known": list(self._made.get(source, ())),
            "folder": str(made),
            "mirror": str(self._folder.mirror(hashlib.sha256(request.source.encode()).hexdigest()[:32])),
            "most_bytes": min(self._most_bytes, MOST_BYTES) if request.bundle else self._most_bytes,
            "most_entries": MOST_ENTRIES if request.bundle else _MOST_ENTRIES,
            "memory_bytes": _GIT_BYTES,
            "cpu_s": math.ceil(self._timeout_s),
            "git": self._git,
        }
        if request.kind != "bundle":
            answer = await _run({**task, "identity": identity, "said": "", "reader": -1})
            if request.kind == "remote" and await asyncio.to_thread(self._folder.mirror_bytes) > self._most_bytes:
                await asyncio.to_thread(self._folder.clear_mirrors)
            return answer

        async def adopt(said: bytes, reader: int) -> PreparationAnswer:
            spec: Spec = {**task, "identity": identity, "said": said.decode("utf-8", "replace"), "reader": reader}
            async with self._adopting.take(request.tenant, 0):
                return await _run(spec)

        staged = self._folder.new()
        try:
            await to_the_end(asyncio.to_thread(self._folder.stage, staged, request.bundle))
            path = str(staged.relative_to(self._folder.store))
            return await self._unbundle(task, path, len(request.bundle), adopt)
        except SandboxFailure as failure:
            raise PreparationFailed(str(failure)) from None
        finally:
            await to_the_end(asyncio.to_thread(self._folder.discard, staged))

    def _remember(self, facts: Facts) -> None:
        self._facts[facts["workspace_id"]] = facts
        self._made.setdefault(facts["source"], {})[facts["commit"]] = facts["workspace_id"]

    def _take_away(self, name: str) -> Path:
        """Forgets a workspace that is not in the table any more, and returns its folder, to be discarded."""
        facts = self._facts.pop(name)
        commits = self._made[facts["source"]]
        del commits[facts["commit"]]
        if not commits:
            del self._made[facts["source"]]
        return self._folder.take_away(facts["folder"])

    async def _sweep(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_TICK_S)
                gone = [self._take_away(name) for name in self._table.expire(self._clock.now())]
                for away in gone:
                    await asyncio.to_thread(self._folder.discard, away)


async def _run(spec: Spec) -> PreparationAnswer:
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
        pass_fds=[spec["reader"]] if spec["reader"] >= 0 else [],
    )
    try:
        out, said = await process.communicate(json.dumps(spec).encode())
    finally:
        await to_the_end(_end(process))
    try:
        answer: PreparationAnswer = json.loads(out)
    except ValueError:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise PreparationFailed(f"the preparation ended with {process.returncode}: {last}") from None
    return answer


def _identity(request: PrepareRequest, source: str) -> Identity:
    return {
        "workspace_id": f"ws-{secrets.token_hex(16)}",
        "tenant": request.tenant,
        "source": source,
        "folder": secrets.token_hex(16),
        "mount_path": request.mount_path,
        "idle_ttl_s": request.idle_ttl_s,
    }


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


def _raise(answer: PreparationAnswer) -> NoReturn:
    if answer["field"]:
        raise FieldErrors([FieldError(answer["field"], answer["error"])])
    if not answer.get("reachable", True):
        raise ExecutorUnavailable(answer["error"])
    raise PreparationFailed(answer["error"])
