"""Plays the trajectories of the book, keeps what they come to, and hands it to its tenants' streams.

Invariants: what `submit` has returned from is on disk; a result is on disk before any stream gets it; no failure of one
trajectory reaches another; everything that was started has ended when the block is left. Where the disk fails nothing
goes on: `failed` is set, and `failure` says why.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from executor_service import Cause
from rollout.engines.base import SamplingParams, derived_seed
from rollout.journal import JournalError, OtherTask, RunJournal
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop
from rollout.loop.scoring import Scoring
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.service.book import BookEntry, Delivery, TenantCounts, TrajectoryBook
from rollout.service.messages import trajectory_message
from rollout.service.requests import ProblemSet, submitted, task_of
from rollout.service.store import Submitted, TrajectoryStore
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.trajectory import Trajectory
from rollout.v1 import rollout_pb2 as pb

_MOST_STALE = 3
"""Times that a trajectory is played again because it was too stale: one that takes longer than its trainer's updates
would be for ever."""
_RETRY_AFTER_S = 0.5
"""Lets a service that is being restarted come back; doubled with each attempt."""
_LOG = logging.getLogger("fairbox.rollout")

Age = Callable[[str], int | None]
"""Updates of the engine's weights since it had some; None: it is not known to have had them."""
Record = Callable[[TrajectoryResult, Task], dict[str, Any]]
"""The trajectory as a line of a dump."""


@dataclass(frozen=True, slots=True)
class Player:
    """Parts that a trajectory is played with."""

    at: Callable[[float | None], Loop]
    """The loop, at a temperature or at its own."""
    scoring: Scoring
    problems: ProblemSet
    record: Record
    journal: RunJournal
    retries: int
    """Attempts beyond the first of a trajectory that the service failed."""
    seed: int | None
    """Makes the seeds of trajectories that bring none."""
    age: Age = lambda version: 0
    """Age of the engine's weights."""


@dataclass(slots=True)
class Totals:
    """Counts since the start."""

    ended: int = 0
    masked: int = 0
    retried: int = 0
    acknowledged: int = 0
    cancelled: int = 0
    resumed: int = 0
    stale: int = 0


class Trajectories:
    """`async with Trajectories(store, book, player) as trajectories`: goes on with what was there, and plays what is
    submitted."""

    def __init__(self, store: TrajectoryStore, book: TrajectoryBook, player: Player) -> None:
        self._store = store
        self._book = book
        self._player = player
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._news: dict[Delivery, asyncio.Event] = {}
        self._group = asyncio.TaskGroup()
        self.totals = Totals()
        self.failure: JournalError | None = None
        self.failed = asyncio.Event()
        """Set when what comes can't be kept any more."""

    async def __aenter__(self) -> Self:
        entries = await self._store.entries()
        self._book.add(entries)
        self.totals.resumed = sum(counts.queued for counts in self._book.counts().values())
        await self._group.__aenter__()
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.failed.set()  # nothing is begun any more
        for task in self._playing.values():
            task.cancel()
        await self._group.__aexit__(None, None, None)
        while self._writing:
            await asyncio.wait(self._writing)

    def counts(self) -> dict[str, TenantCounts]:
        """Counts of each tenant that has trajectories here."""
        return self._book.counts()

    async def submit(self, tenant: str, tasks: Sequence[Submitted]) -> tuple[int, list[str]]:
        """Keeps tasks, all or none; how many are new, and ids of which nothing is left. Raises BookFull, IdReused and
        JournalError."""
        with self._kept():
            new, gone = await self._store.unknown(tenant, tasks)
        self._book.reserve(tenant, len(new))
        entries: list[BookEntry] = []
        try:
            await self._to_its_end(self._add(tenant, new, entries))
        finally:
            self._book.release(tenant, len(new))
        return len(entries), gone

    async def acknowledge(self, tenant: str, ids: Sequence[str]) -> None:
        """Lets go of results that their trainer has. Raises JournalError."""
        numbers = self._book.acknowledge(tenant, ids)
        self.totals.acknowledged += len(numbers)
        self._tell(tenant)  # there is room for more
        await self._to_its_end(self._forget(numbers))

    async def cancel(self, tenant: str, ids: Sequence[str]) -> int:
        """Ends trajectories and lets go of them; how many were here. Raises JournalError."""
        numbers = self._book.cancel(tenant, ids)
        self.totals.cancelled += len(numbers)
        for number in numbers:
            if number in self._playing:
                self._playing[number].cancel()
        await self._to_its_end(self._forget(numbers))
        return len(numbers)

    async def stream(self, tenant: str, most: int, name: str = "") -> AsyncGenerator[bytes]:
        """A tenant's results, as they are kept, until another stream takes its place or `failed` is set. `name` is the
        stream's over reconnections. Raises StreamReplaced."""
        delivery = self._book.open(tenant, most, name)
        for other in [each for each in self._news if each.tenant == tenant]:
            self._news[other].set()  # it sees that its place is taken
        news = self._news[delivery] = asyncio.Event()
        try:
            while self._book.streams(delivery) and not self.failed.is_set():
                news.clear()
                entry = self._book.give(delivery)
                if entry is None:
                    await news.wait()
                    continue
                with self._kept():
                    kept = await self._store.result(entry.number)
                if kept is None or (result := await self._fresh(entry, *kept)) is None:
                    continue
                if self._book.keeps(
                    entry
                ):  # meanwhile it may have been cancelled, or acknowledged by an earlier stream
                    yield result
        finally:
            del self._news[delivery]
            self._book.close(delivery)

    async def _fresh(self, entry: BookEntry, result: bytes, task: bytes) -> bytes | None:
        """The result, if it is not too stale for its trainer. None: it is played again."""
        most, versions = await asyncio.to_thread(_bounded, result, task)  # which may be megabytes
        ages = [self._player.age(version) for version in versions]
        if all(age is not None and age <= most for age in ages):
            return result
        self.totals.stale += 1
        if entry.stale >= _MOST_STALE:
            return await asyncio.to_thread(_too_stale, result, versions)
        await self._to_its_end(self._again(entry))
        return None

    async def _again(self, entry: BookEntry) -> None:
        if not self._book.requeue(entry):
            return
        with self._kept():
            await self._store.requeue(entry.number)  # asked for before anybody can begin it
        self._begin()

    def end_streams(self) -> None:
        """Ends every stream: the service is about to end."""
        self.failed.set()
        for news in self._news.values():
            news.set()

    def _begin(self) -> None:
        while not self.failed.is_set() and (entry := self._book.begin()) is not None:
            task = self._group.create_task(self._run(entry), name=f"trajectory {entry.number}")
            self._playing[entry.number] = task

    async def _run(self, entry: BookEntry) -> None:
        """Plays one, and keeps what it comes to."""
        try:
            with self._kept():
                task, result = await self._played(entry, await self._store.task(entry.number))
                await self._store.end(entry.number, await self._message(entry, task, result))
                await self._player.journal.forget(entry.number)
            self.totals.ended += 1
            self.totals.masked += result.masked
        except JournalError:
            return  # which `failed` says
        finally:
            del self._playing[entry.number]
            self._book.ended(entry.number)
            self._tell(entry.tenant)
            self._begin()

    async def _played(self, entry: BookEntry, kept: Submitted) -> tuple[Task, TrajectoryResult]:
        """The task, and its trajectory. Raises nothing but cancellation and JournalError."""
        message = pb.TrajectoryTask.FromString(kept.task)
        if submitted(message, self._player.problems).digest != kept.digest:
            task = Task(message.group or message.id, (), "", "", f"trajectory {message.id}")
            why = "the data have another problem in the place of this one than when it was submitted, or none"
            return task, _lost(entry, task, why)
        task, attempt = task_of(message, self._player.problems), 1
        seed = derived_seed(self._player.seed, "trajectory", entry.number)
        if message.HasField("seed"):
            seed = message.seed
        loop = self._player.at(message.temperature if message.HasField("temperature") else None)
        while True:
            try:
                result = await loop.run(task, index=entry.number, seed=seed, attempt=attempt)
                result = await self._player.scoring.scored(task, result)
            except OtherTask:
                # Its journal is of another moment than the store. Safe: of an attempt nothing was handed over.
                _LOG.warning("the journal has another trajectory in the place of %s, which is forgotten", entry.id)
                await self._player.journal.forget(entry.number)
                continue
            except JournalError:
                raise
            except Exception as error:  # the boundary of a trajectory: a defect of ours must not end the others
                _LOG.exception("trajectory %s of %s could not be played", entry.id, task.where)
                result = _lost(entry, task, f"{type(error).__name__}: {error}")
            if not result.masked or result.unscored or attempt > self._player.retries:
                return task, result
            # Safe: nothing of the failed attempt was handed over, and the next one has an id of its own.
            if not self._player.journal.ended_before(entry.number, attempt):  # else there was a restart to wait for
                self.totals.retried += 1
                await asyncio.sleep(_RETRY_AFTER_S * 2 ** (attempt - 1))
            attempt += 1

    async def _message(self, entry: BookEntry, task: Task, result: TrajectoryResult) -> bytes:
        """The message for its trainer. A result that can't be written is a lost one."""
        try:
            record = self._player.record(result, task)
            return await asyncio.to_thread(lambda: trajectory_message(result, record, entry.id).SerializeToString())
        except Exception as error:  # the boundary of a trajectory, as above
            _LOG.exception("trajectory %s of %s could not be written", entry.id, task.where)
            lost = _lost(entry, task, f"{type(error).__name__}: {error}")
            return trajectory_message(lost, self._player.record(lost, task), entry.id).SerializeToString()

    async def _add(self, tenant: str, tasks: Sequence[Submitted], entries: list[BookEntry]) -> None:
        with self._kept():
            entries += await self._store.add(tenant, tasks)
        self._book.add(entries)
        self._begin()

    async def _forget(self, numbers: Sequence[int]) -> None:
        """Deletes them from the disk, those that run when they have ended."""
        if playing := [self._playing[number] for number in numbers if number in self._playing]:
            await asyncio.wait(playing)
        if numbers:
            with self._kept():
                await self._store.forget(numbers)
                for number in numbers:
                    await self._player.journal.forget(number)

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits what book and disk must both have, or neither: it goes on whatever becomes of its caller."""
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._written)
        await asyncio.shield(task)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have gone, and `failed` says it too

    def _tell(self, tenant: str) -> None:
        for delivery, news in self._news.items():
            if delivery.tenant == tenant:
                news.set()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Around what needs the disk: its failure ends the service."""
        try:
            yield
        except JournalError as error:
            self.failure = self.failure or error
            self.end_streams()
            raise


def _bounded(result: bytes, task: bytes) -> tuple[int, Set[str]]:
    """The most staleness that a trajectory may have, and the weights for which that holds: none where anything goes."""
    wanted = pb.TrajectoryTask.FromString(task)
    if not wanted.HasField("max_staleness"):
        return 0, set()
    trajectory = pb.Trajectory.FromString(result)
    parts = [] if trajectory.masked else [part for row in trajectory.rows for part in row.segments]
    return wanted.max_staleness, {part.weight_version for part in parts if part.sampled}


def _too_stale(result: bytes, versions: Set[str]) -> bytes:
    """The trajectory, masked."""
    trajectory = pb.Trajectory.FromString(result)
    record = json.loads(trajectory.record_json)
    error = f"it was too stale {_MOST_STALE + 1} times, the last time with the weights {', '.join(sorted(versions))}"
    trajectory.masked = True
    trajectory.ClearField("reward")
    trajectory.record_json = json.dumps(record | {"masked": True, "score": None, "cause": "INFRA", "error": error})
    return trajectory.SerializeToString()


def _lost(entry: BookEntry, task: Task, error: str) -> TrajectoryResult:
    """The result of a trajectory that could not be played."""
    return TrajectoryResult(
        trajectory_id=f"{entry.number:032x}",
        uid=task.uid,
        index=entry.number,
        trajectory=Trajectory((Segment(SegmentKind.PROMPT, ()),)),
        messages=task.messages,
        tool_calls=(),
        state=RequestState.FAILED,
        stop_reason=StopReason.INFRA,
        cause=Cause.INFRA,
        turns=0,
        sampling=SamplingParams(),
        error=error,
    )
