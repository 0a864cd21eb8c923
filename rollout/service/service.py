"""`rollout.v1.RolloutService` over gRPC: checks requests, hands them on, names every error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from fairbox.apart import read_apart
from fairbox.errors import FieldError, FieldErrors
from fairbox.net.fields import Fields
from fairbox.net.grpc_errors import abort_exhausted, abort_fields, abort_reason
from fairbox.net.reading import check_apart, parse_apart, varint
from fairbox.security import Role, TenantRefused, current_identity, still_permitted
from rollout.engines.base import EngineUnavailable
from rollout.journal import JournalError
from rollout.service.book import BookFull, StreamReplaced
from rollout.service.engine import EngineControl
from rollout.service.requests import ProblemSet, check_ids, check_tenant, checked, unacknowledged
from rollout.service.store import IdReused
from rollout.service.trajectories import Trajectories
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

SERVICE_NAME = "rollout.v1.RolloutService"
ACCESS: Mapping[str, frozenset[Role]] = {
    f"/{SERVICE_NAME}/": frozenset({Role.CLIENT}),
    **{f"/{SERVICE_NAME}/{name}": frozenset({Role.ADMIN}) for name in ("UpdateWeights", "PauseEngine", "ResumeEngine")},
    f"/{SERVICE_NAME}/GetStatus": frozenset({Role.CLIENT, Role.ADMIN}),
}
"""Roles that may call each method: the engine is everybody's."""
_OPEN_WITHIN_S = 10.0
"""A stream that says nothing for so long is closed: it holds a slot of the server."""
_LOOK_EVERY_S = 1.0
"""Seconds between two look-ups of a stream's token."""
_FULL_RETRY_S = 5.0
"""After so long a refused trainer may have acknowledged some, or others may have ended."""
_LONGEST_PATH = 4096
"""Characters, as Linux has it."""
STREAMS = (("rollout-stream", "open"),)
"""Initial metadata of a stream, as soon as it is one: its first trajectory may be long in coming."""
_TRAJECTORY = b"\x0a"
"""Tag of `StreamTrajectoriesResponse.trajectory`, which is on disk as it is to be sent."""
_PAUSE_S = 600.0
_LONGEST_PAUSE_S = 3600.0
"""A longer one has to be asked for again: who asked may be gone."""

CheckPrompt = Callable[[pb.Prompt], str | None]
"""Why the chat template or the engine can't take a prompt; None: they can."""


class RolloutService(rollout_pb2_grpc.RolloutServiceServicer):
    """The public service. `check_temperature` raises FieldErrors for one at which the engine's logprobs are not exact;
    `engine` None: it takes no weights and can't be paused."""

    def __init__(
        self,
        trajectories: Trajectories,
        *,
        problems: ProblemSet,
        check_prompt: CheckPrompt,
        check_temperature: Callable[[float], None],
        engine: EngineControl | None,
        status: Callable[[], pb.GetStatusResponse],
    ) -> None:
        self._trajectories = trajectories
        self._problems = problems
        self._check_prompt = check_prompt
        self._check_temperature = check_temperature
        self._engine = engine
        self._status = status

    async def SubmitTrajectories(
        self, request: pb.SubmitTrajectoriesRequest, context: Context
    ) -> pb.SubmitTrajectoriesResponse:
        """Keeps tasks, all or none."""
        tenant = await _tenant(context, request.tenant)
        try:
            tasks = await check_apart(lambda: checked(request.tasks, problems=self._problems))
            await self._check_sampled(request.tasks)
            accepted, gone = await self._trajectories.submit(tenant, tasks)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        except IdReused as reused:
            problem = f"was submitted before, with another task: {', '.join(reused.ids[:3])}"
            await abort_fields(context, FieldErrors([FieldError("tasks.id", problem)]))
        except BookFull as full:
            await abort_exhausted(context, str(full), retry_after_s=_FULL_RETRY_S, subject=full.subject)
        except JournalError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.SubmitTrajectoriesResponse(accepted=accepted, gone=gone)

    async def StreamTrajectories(  # type: ignore[override]
        self, request_iterator: object, context: Context
    ) -> None:
        """Results as they are kept."""
        try:
            async with asyncio.timeout(_OPEN_WITHIN_S):
                request = await _request(context)
            if request is None or request.WhichOneof("request") != "open":
                raise FieldErrors([FieldError("open", "is not set in the first request")])
            most = unacknowledged(request.open)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no open within {_OPEN_WITHIN_S:.0f} s")
        tenant = await _tenant(context, request.open.tenant)
        await context.send_initial_metadata(STREAMS)
        async with aclosing(self._trajectories.stream(tenant, most, request.open.name)) as stream:
            sending = asyncio.create_task(_send(stream, context))
            reading = asyncio.create_task(self._read(tenant, context))
            permitted = asyncio.create_task(_permitted())
            tasks = (sending, reading, permitted)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        if not permitted.cancelled():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token of this stream is not good any more")
        await self._ended(sending, reading, context)

    async def CancelTrajectories(
        self, request: pb.CancelTrajectoriesRequest, context: Context
    ) -> pb.CancelTrajectoriesResponse:
        """Ends trajectories, and forgets what they came to."""
        tenant = await _tenant(context, request.tenant)
        try:
            check_ids(request.ids)
            cancelled = await self._trajectories.cancel(tenant, request.ids)
        except FieldErrors as errors:
            await abort_fields(context, errors)
        except JournalError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.CancelTrajectoriesResponse(cancelled=cancelled)

    async def UpdateWeights(self, request: pb.UpdateWeightsRequest, context: Context) -> pb.UpdateWeightsResponse:
        """Other weights for the engine."""
        fields = Fields()
        fields.identifier("version", request.version)
        fields.text("folder", request.folder, longest=_LONGEST_PATH)
        if not request.folder.startswith("/"):
            fields.refuse("folder", f"is {request.folder[:128]!r}, must be an absolute path")
        await fields.check_call(context)
        await self._moved(context, lambda engine: engine.update(Path(request.folder), request.version))
        return pb.UpdateWeightsResponse()

    async def PauseEngine(self, request: pb.PauseEngineRequest, context: Context) -> pb.PauseEngineResponse:
        """No turn is sampled for a while."""
        fields = Fields()
        seconds = fields.duration("pause_s", request.pause_s, default=_PAUSE_S, longest=_LONGEST_PAUSE_S)
        await fields.check_call(context)
        await self._moved(context, lambda engine: engine.pause(seconds))
        return pb.PauseEngineResponse()

    async def ResumeEngine(self, request: pb.ResumeEngineRequest, context: Context) -> pb.ResumeEngineResponse:
        """Turns are sampled again."""
        await self._moved(context, EngineControl.resume)
        return pb.ResumeEngineResponse()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        """The state at one instant."""
        status, own = self._status(), current_identity().tenant
        status.paused_s = self._engine.paused_s if self._engine is not None else 0.0
        for name, counts in self._trajectories.counts().items():
            if own in ("", name):
                status.tenants.add(
                    tenant=name,
                    queued=counts.queued,
                    running=counts.running,
                    ended=counts.ended,
                    streaming=counts.streaming,
                )
        return status

    async def _moved(self, context: Context, move: Callable[[EngineControl], Awaitable[None]]) -> None:
        """Does something with the engine. Ends the call where that can't be."""
        if self._engine is None:
            text = "the engine takes no other weights while it runs, and can't be paused"
            await abort_reason(context, grpc.StatusCode.FAILED_PRECONDITION, text, "FIXED_WEIGHTS")
        else:
            try:
                await move(self._engine)
            except FieldErrors as errors:
                await abort_fields(context, errors)
            except (EngineUnavailable, JournalError) as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def _check_sampled(self, tasks: Sequence[pb.TrajectoryTask]) -> None:
        """Raises FieldErrors for the first task that can't be sampled. A long prompt is read in a thread."""
        for number, task in enumerate(tasks):
            if task.HasField("temperature"):
                try:
                    self._check_temperature(task.temperature)
                except FieldErrors as errors:
                    raise FieldErrors([FieldError(f"tasks[{number}].temperature", errors.errors[0].problem)]) from None
            if task.WhichOneof("task") == "prompt":
                problem = await read_apart(task.prompt.ByteSize(), partial(self._check_prompt, task.prompt))
                if problem is not None:
                    raise FieldErrors([FieldError(f"tasks[{number}].prompt", problem)])
                await asyncio.sleep(0)  # others have their turn between two prompts

    async def _read(self, tenant: str, context: Context) -> None:
        """Takes acknowledgements until the client says no more. Raises FieldErrors and JournalError."""
        while (request := await _request(context)) is not None:
            if request.WhichOneof("request") != "acknowledge":
                raise FieldErrors([FieldError("acknowledge", "is not set in a request behind the first")])
            check_ids(request.acknowledge.ids, least=0)
            await self._trajectories.acknowledge(tenant, request.acknowledge.ids)

    async def _ended(self, sending: asyncio.Task[None], reading: asyncio.Task[None], context: Context) -> None:
        """Says why a stream ended, unless its client wanted that."""
        broken, error = (None if task.cancelled() else task.exception() for task in (sending, reading))
        if isinstance(error, FieldErrors):
            await abort_fields(context, error)
        if self._trajectories.failed.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this process ends")
        problem = error or broken
        if problem is not None and not isinstance(problem, StreamReplaced):
            raise problem
        if reading.cancelled():
            await context.abort(grpc.StatusCode.ABORTED, "another stream of this tenant took the place of this one")


async def _tenant(context: Context, given: str) -> str:
    """The tenant of a request. Ends the call where the token is not for it."""
    try:
        check_tenant(given)
        return current_identity().for_tenant(given)
    except FieldErrors as errors:
        await abort_fields(context, errors)
    except TenantRefused as refused:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refused))
    raise AssertionError("abort() does not return")


async def _request(context: Context) -> pb.StreamTrajectoriesRequest | None:
    """The next one of a stream; None: there is none. Raises FieldErrors."""
    data = await context.read()
    return await parse_apart(pb.StreamTrajectoriesRequest, data) if isinstance(data, bytes) else None


async def _permitted() -> None:
    """Returns when the token with which the stream was opened is not good any more."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if not still_permitted():
            return


async def _send(stream: AsyncIterator[bytes], context: Context) -> None:
    async for trajectory in stream:
        await context.write(_TRAJECTORY + varint(len(trajectory)) + trajectory)
