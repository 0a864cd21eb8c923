"""Another trainer's trajectories, played by a rollout service: engine, tools, limits and rewards are the service's.

Invariants: each task comes back once; what the service could not be asked for is masked; what comes for nobody, because
it was asked for by an earlier life of the trainer, is acknowledged and forgotten; who stops waiting has it cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Self

from executor_service import Cause
from fairbox.config import setting
from fairbox.errors import FieldErrors
from fairbox.gathering import all_of
from rollout.cleanup import to_its_end
from rollout.engines.base import SamplingParams
from rollout.loop.limits import StopReason
from rollout.loop.results import TrajectoryResult
from rollout.loop.state import RequestState
from rollout.loop.task import Task
from rollout.service import RolloutClient, RolloutServiceError, RolloutTask, SubmissionRefused
from rollout.tokens.segment import Segment, SegmentKind
from rollout.tokens.trajectory import Trajectory
from rollout.v1 import rollout_pb2 as pb

_AWAY_S = 600.0
"""A service that can't be reached for so long has failed; it may be on its way to another machine."""
_ROOM_S = 600.0
"""Longest wait for room at a service that other runs fill."""
_ASK_EVERY_S = 60.0
"""Seconds until a trajectory is submitted again: a service that lost its disk has it then, and says what is gone."""
_CANCEL_S = 10.0
_UNACKNOWLEDGED = 256
"""Trajectories that it may send ahead: each is acknowledged when it comes."""
_LONGEST_GROUP = 128
_LOG = logging.getLogger("fairbox.rollout")


@dataclass(frozen=True)
class ServiceUse:
    """The rollout service that plays in place of the trainer's own process."""

    target: str = setting("", help="Address of a rollout service, or of its replicas with commas; empty: none.")
    tenant: str = setting("", help="Whose trajectories these are; empty: that of the token. Each run needs its own.")


class ServicePlayer:
    """`async with ServicePlayer(use) as player`. A tenant has one stream, so a process has one of these for each."""

    def __init__(self, use: ServiceUse) -> None:
        self._client = RolloutClient(use.target, tenant=use.tenant, unavailable_after=_AWAY_S)
        self._prefix = secrets.token_hex(8)
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[TrajectoryResult]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._client.__aexit__(None, None, None)

    async def play(self, tasks: Sequence[Task], temperature: float) -> list[TrajectoryResult]:
        """One trajectory of each, in order. Those that the service refuses, or can't be asked for, are masked."""
        return await all_of(self._one(index, task, temperature) for index, task in enumerate(tasks))

    async def _one(self, index: int, task: Task, temperature: float) -> TrajectoryResult:
        name = f"{self._prefix}-{next(self._numbers)}"
        future: asyncio.Future[TrajectoryResult] = asyncio.get_running_loop().create_future()
        self._waiting[name] = future
        asked = _asked(name, task, temperature)
        try:
            while not future.done():
                submission = await self._submit(asked)
                self._read()
                if name in submission.gone and not future.done():
                    raise RolloutServiceError("somebody cancelled the trajectory at the rollout service")
                await asyncio.wait([future], timeout=_ASK_EVERY_S)
            result = future.result()
        except RolloutServiceError as error:
            _LOG.warning("%s is masked: %s", task.where, error)
            return _masked(index, task, str(error), Cause.INFRA)
        except FieldErrors as error:
            _LOG.error("%s is left out: %s", task.where, error)
            return _masked(index, task, str(error), Cause.TASK)
        finally:
            if self._waiting.pop(name, None) is not None:
                await to_its_end(self._cancel(name))
        return replace(result, uid=task.uid, index=index)

    async def _submit(self, task: RolloutTask) -> pb.SubmitTrajectoriesResponse:
        until = asyncio.get_running_loop().time() + _ROOM_S
        while True:
            try:
                # Again is safe: it has an id. The client asks again while the service is away.
                return await self._client.submit([task])
            except SubmissionRefused as refused:
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(refused.retry_after_s)

    def _read(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._stream(), name="trajectories of a rollout service")

    async def _stream(self) -> None:
        """Hands out what comes, until nobody waits any more because the stream has failed."""
        try:
            async with self._client.stream(max_unacknowledged=_UNACKNOWLEDGED) as stream:
                async for trajectory in stream:
                    future = self._waiting.pop(trajectory.id, None)
                    if future is not None and not future.done():
                        future.set_result(trajectory.result)
                    await stream.acknowledge(trajectory.id)
        except (RolloutServiceError, FieldErrors) as error:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)

    async def _cancel(self, name: str) -> None:
        """One that can't be cancelled now comes, and is forgotten then."""
        with contextlib.suppress(RolloutServiceError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._client.cancel([name])


def _asked(name: str, task: Task, temperature: float) -> RolloutTask:
    return RolloutTask(
        name,
        messages=[{"role": str(each["role"]), "content": str(each["content"])} for each in task.messages],
        group=task.uid[:_LONGEST_GROUP],
        ground_truth=task.ground_truth,
        data_source=task.data_source,
        temperature=temperature,
    )


def _masked(index: int, task: Task, error: str, cause: Cause) -> TrajectoryResult:
    infra = cause is Cause.INFRA
    return TrajectoryResult(
        trajectory_id="",
        uid=task.uid,
        index=index,
        trajectory=Trajectory((Segment(SegmentKind.PROMPT, ()),)),
        messages=task.messages,
        tool_calls=(),
        state=RequestState.FAILED,
        stop_reason=StopReason.INFRA if infra else StopReason.BAD_PROMPT,
        cause=cause,
        turns=0,
        sampling=SamplingParams(),
        error=error,
        unscored=not infra,
    )
