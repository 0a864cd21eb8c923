"""Trajectories of a training run that a rollout service plays, and the service as taker of the run's weights.

Invariants: the id of a trajectory follows from the run, its seed and its attempt, so that a later life of the run gets
what an earlier one had asked for, and nothing is sampled twice; what no life may ask for again is let go of; one that
weights sampled which this life does not have is asked for anew. What the service has lost, or somebody cancelled there,
is asked for anew too. It does not say which trajectories are played: that is `RolloutStream`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from prometheus_client.metrics_core import Metric

from fairbox.errors import FairboxError, FieldErrors
from rollout.cleanup import to_its_end
from rollout.engines.base import EngineStatistics, EngineUnavailable
from rollout.engines.weights import DiskWeights, WeightSource
from rollout.envs.base import Environment
from rollout.loop.results import TrajectoryResult
from rollout.loop.runner import Loop
from rollout.loop.scoring import Score
from rollout.loop.task import Task
from rollout.service.client import RolloutClient, RolloutTask
from rollout.service.replica import RolloutServiceError, RolloutServiceUnavailable, SubmissionRefused
from rollout.service.requests import MAX_IDS, MAX_UNACKNOWLEDGED, problem_digest
from rollout.service.streaming import StreamedTrajectory, TrajectoryStream
from rollout.training.learner.sync import parse_version
from rollout.training.rollouts.lives import RunLives, sampled_versions
from rollout.v1 import rollout_pb2 as pb

AWAY_S = 600.0
"""A service that can't be reached for so long ends the run; it may be on its way to another machine."""
_ROOM_S = 600.0
"""Longest wait for room at a service that other runs fill."""
_ASK_EVERY_S = 60.0
"""Seconds until a trajectory is submitted again: a service that lost its disk has it then, and says what is gone."""
_LOOK_EVERY_S = 2.0
"""Seconds between two looks at the service's weights."""
_MOST_HELD = MAX_UNACKNOWLEDGED // 2
"""Trajectories that are kept at the service for a later life of the run. The oldest are let go of beyond that, because
a stream with too many of them would get no others."""
_CALL_S = 30.0
_LOG = logging.getLogger("fairbox.training")


class ServiceEngine:
    """The engine of a rollout service, or those of its replicas."""

    def __init__(self, client: RolloutClient) -> None:
        self._client = client
        self._updates = 0
        self._version = ""
        self.model_name = ""
        self._busy_s = 0.0

    @property
    def weight_version(self) -> str:
        """The version when it was last looked at; empty where replicas have several."""
        return self._version

    def statistics(self) -> EngineStatistics:
        """The time in which it sampled when it was last looked at, the mean of replicas; the service has the others."""
        return EngineStatistics(busy_s=self._busy_s)

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        """Gives it a folder's weights. Raises EngineUnavailable, FieldErrors and RolloutServiceError."""
        assert isinstance(source, DiskWeights), "a service is in another process"
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.update_weights(str(source.path), version=version)
        except RolloutServiceUnavailable as error:
            raise EngineUnavailable(str(error)) from None
        except TimeoutError:
            raise EngineUnavailable(f"the weights {version!r} were not taken within {timeout_s:g} s") from None
        self._updates += 1
        self._version = version

    async def look(self) -> None:
        """Asks the service for the state of its engine. Raises RolloutServiceError."""
        updates = self._updates
        found = [*(await self._client.status()).values()]
        self.model_name = found[0].model
        self._busy_s = sum(each.engine_busy_s for each in found) / len(found)
        if updates == self._updates:  # else the answers may be older than the weights
            first, *others = {each.weight_version for each in found}
            self._version = "" if others else first


@dataclass(frozen=True, slots=True)
class _At:
    """The loop at a temperature of its own."""

    loop: ServiceLoop
    temperature: float

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        place = _Place(f"t{self.temperature:g}", index, seed, attempt, self.temperature)
        return await self.loop.played(task, place)


@dataclass(frozen=True, slots=True)
class _Place:
    """Everything that makes the id of a trajectory, beside the run."""

    kind: str
    index: int
    seed: int | None
    attempt: int
    temperature: float


class ServiceLoop:
    """`async with ServiceLoop(client, lives, temperature=1.0, decode=chat.decode_plain) as loop`. What it plays is of
    the service's own problems, which are known by their digests."""

    def __init__(
        self, client: RolloutClient, lives: RunLives, *, temperature: float, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.lives = lives
        self.engine = ServiceEngine(client)
        self._client = client
        self._temperature = temperature
        self._decode = decode
        self._stream: TrajectoryStream | None = None
        self._waiting: dict[str, asyncio.Future[TrajectoryResult | None]] = {}
        """By id; None comes where the service failed."""
        self._early: dict[str, TrajectoryResult] = {}
        """Came before they were asked for: an earlier life had."""
        self._used: set[str] = set()
        """Ids whose trajectories this life was given."""
        self._asked: set[str] = set()
        """Ids of what may be at the service and has not come."""
        self._held: dict[str, str] = {}
        """Trajectory -> id of what came and is kept at the service, the oldest first."""
        self._strangers = False
        self._leaving = False
        self._failure: FairboxError | FieldErrors | None = None
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.engine.look()
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(work()) for work in (self._read, self._look)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def decode(self, ids: Sequence[int]) -> str:
        return self._decode(ids)

    def score(self, environment: Environment) -> Score | None:
        return None

    def at(self, temperature: float) -> Loop:
        return _At(self, temperature)

    def leave(self) -> None:
        self._leaving = True

    def metrics(self) -> Iterator[Metric]:
        """None: the service has its own."""
        yield from ()

    async def run(self, task: Task, *, index: int, seed: int | None, attempt: int = 1) -> TrajectoryResult:
        """Raises RolloutServiceError where the service is away for too long, and FieldErrors for a problem that it
        doesn't have."""
        return await self.played(task, _Place("", index, seed, attempt, self._temperature))

    async def played(self, task: Task, place: _Place) -> TrajectoryResult:
        """The trajectory of a place, from an earlier life if that had asked for it."""
        first, again = f"{self.lives.run}.{place.kind}.{place.seed or 0:x}.{place.attempt}", 0
        while True:
            name = first if not again else f"{first}.{self.lives.life}.{again}"
            again += 1
            if name in self._used:
                continue
            result = await self._result(name, task, place)
            if result is None:
                continue  # an earlier life let go of it
            self._used.add(name)
            lost = self._lost_weights(result)
            if lost or result.masked:
                await self.drop([result.trajectory_id])
            if not lost:
                return replace(result, index=place.index)

    async def drop(self, trajectory_ids: Iterable[str]) -> None:
        names = [name for each in trajectory_ids if (name := self._held.pop(each, None)) is not None]
        await self._acknowledge(names)

    async def finish(self) -> None:
        """Ends and forgets everything of this run that is at the service. One that is away is warned of: the run is
        over, and what is left there waits for nobody."""
        names = [*self._asked, *self._held.values()]
        self._asked.clear()
        self._held.clear()
        self._early.clear()
        for begin in range(0, len(names), MAX_IDS):
            try:
                async with asyncio.timeout(_CALL_S):
                    await self._client.cancel(names[begin : begin + MAX_IDS])
            except (RolloutServiceError, TimeoutError):
                _LOG.warning("%d trajectories of this run are left at the rollout service, which is away", len(names))
                return

    def _lost_weights(self, result: TrajectoryResult) -> bool:
        """Says whether weights of this run sampled it that this life does not have."""
        ours = (version for version in sampled_versions(result) if parse_version(version) is not None)
        return not all(map(self.lives.descends_from, ours))

    async def _result(self, name: str, task: Task, place: _Place) -> TrajectoryResult | None:
        """The trajectory with this id; None: it is gone."""
        if (early := self._early.pop(name, None)) is not None:
            return early
        future: asyncio.Future[TrajectoryResult | None] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        asked = RolloutTask(
            name,
            group=task.uid,
            problem_digest=problem_digest(task),
            seed=place.seed,
            temperature=place.temperature,
        )
        try:
            while not future.done() and self._failure is None:
                self._asked.add(name)
                # Again is safe: it has an id.
                submission = await self._submitted(asked)
                if name in submission.gone and not future.done():
                    self._asked.discard(name)
                    return None
                await asyncio.wait([future], timeout=_ASK_EVERY_S)
            if self._failure is not None:
                raise self._failure
            return future.result()
        except asyncio.CancelledError:
            if not self._leaving:
                await to_its_end(self._cancel(name))
            raise
        finally:
            del self._waiting[name]

    async def _submitted(self, task: RolloutTask) -> pb.SubmitTrajectoriesResponse:
        since: float | None = None
        while True:
            try:
                return await self._client.submit([task])
            except SubmissionRefused as refused:
                now = asyncio.get_running_loop().time()
                since = now if since is None else since
                if now - since >= _ROOM_S:
                    text = f"the rollout service had no room for {_ROOM_S:g} s: {refused}"
                    raise RolloutServiceError(text) from None
                await self._let_go(len(self._held) // 2)
                await asyncio.sleep(refused.retry_after_s)

    async def _cancel(self, name: str) -> None:
        self._asked.discard(name)
        with contextlib.suppress(RolloutServiceError, TimeoutError):
            async with asyncio.timeout(_CALL_S):
                await self._client.cancel([name])

    async def _let_go(self, held: int) -> None:
        """Lets go of the oldest until so many are held."""
        names = []
        for trajectory_id in [*self._held][: max(0, len(self._held) - held)]:
            names.append(self._held.pop(trajectory_id))
            self._early.pop(names[-1], None)
        await self._acknowledge(names)

    async def _acknowledge(self, names: Sequence[str]) -> None:
        if names and self._stream is not None:
            await self._stream.acknowledge(*names)

    async def _read(self) -> None:
        """Takes what has ended."""
        try:
            async with self._client.stream(max_unacknowledged=MAX_UNACKNOWLEDGED) as stream:
                self._stream = stream
                async for each in stream:
                    self._came(each)
                    await self._let_go(_MOST_HELD)
        except (FairboxError, FieldErrors) as error:
            self._failure = error
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(None)

    def _came(self, each: StreamedTrajectory) -> None:
        if not each.id.startswith(f"{self.lives.run}."):
            if not self._strangers:
                _LOG.warning("the service has trajectories of others for this tenant, which stay there: %s", each.id)
            self._strangers = True
            return
        self._asked.discard(each.id)
        self._held[each.result.trajectory_id] = each.id
        future = self._waiting.get(each.id)
        if future is None:
            self._early[each.id] = each.result
        elif not future.done():
            future.set_result(each.result)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            with contextlib.suppress(RolloutServiceError):  # a service that is gone for good ends the stream too
                await self.engine.look()
