"""The client of the rollout service: submits trajectories, and takes them as they end.

Invariants: every call has a deadline, but for the stream, which lasts until it is left; what could not be reached is
asked again, which is safe, because each trajectory has an id; a stream gives each trajectory once, over reconnections
too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc
import grpc.aio
from cachetools import LRUCache

from fairbox.errors import FairboxError, FieldError, FieldErrors
from fairbox.net.channels import open_channel
from fairbox.net.grpc_errors import field_errors, retry_after, why_unavailable
from fairbox.security import ClientSecurity, client_security
from rollout.loop.results import TrajectoryResult
from rollout.service.messages import trajectory_result
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc

if TYPE_CHECKING:
    from rollout.v1.rollout_pb2_grpc import RolloutServiceAsyncStub

_CALL_S = 60.0
_WEIGHTS_S = 660.0
"""Longer than an engine may take for them."""
_AGAIN_S = 0.2
_LONGEST_AGAIN_S = 5.0
_NOT_SENT = "Internal error from Core"
"""grpcio's own words for a request that it could not send any more, because the connection was lost in that moment."""
_ACKNOWLEDGED = 100_000
"""Ids whose acknowledgement may have been lost on the way: if they come again, they are acknowledged again."""
T = TypeVar("T")


class RolloutServiceError(FairboxError):
    """The service did not do what it was asked for; the text says why."""


class RolloutServiceUnavailable(RolloutServiceError):
    """It could not be reached for as long as the client was to try."""


class SubmissionRefused(RolloutServiceError):
    """It has no room for these trajectories now."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        """Seconds after which it wants to be asked again."""


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """One trajectory: a problem of the service's environment, by number or digest, or messages of one's own."""

    id: str
    """By which it is safe to submit it again: 1 to 128 characters of visible ASCII."""
    problem: int | None = None
    """Number of the problem, from 0."""
    messages: Sequence[Mapping[str, str]] = ()
    """`role` and `content` of each."""
    problem_digest: bytes = b""
    """Digest of the problem (`problem_digest`), for whoever has the same data."""
    group: str = ""
    """Trajectories of one task, for advantages that compare within it; empty: the id."""
    ground_truth: str = ""
    """With `messages`: the right answer, as the environment's data have it."""
    data_source: str = ""
    """With `messages`: where it comes from."""
    seed: int | None = None
    """Makes its sampling repeatable; None: one made from the service's own."""
    temperature: float | None = None
    """Temperature of its sampling, 0 to 10; None: the service's own."""

    def __post_init__(self) -> None:
        if (self.problem is not None) + bool(self.messages) + bool(self.problem_digest) != 1:
            raise FieldErrors(
                [FieldError("problem", "or problem_digest or messages must be set, and one of them alone")]
            )

    def message(self) -> pb.TrajectoryTask:
        """As it is sent."""
        message = pb.TrajectoryTask(
            id=self.id,
            group=self.group,
            ground_truth=self.ground_truth,
            data_source=self.data_source,
            seed=self.seed,
            temperature=self.temperature,
        )
        if self.problem is not None:
            message.problem = self.problem
        if self.problem_digest:
            message.problem_digest = self.problem_digest
        for each in self.messages:
            message.prompt.messages.add(role=each["role"], content=each["content"])
        return message


@dataclass(frozen=True, slots=True)
class StreamedTrajectory:
    """A trajectory that has ended."""

    id: str
    """As it was submitted."""
    result: TrajectoryResult
    """As the loop that played it had it: `RolloutBatch.from_results` takes it."""


class RolloutClient:
    """`async with RolloutClient("127.0.0.1:50054") as rollouts: ...`

    Make one per process and event loop. It raises FieldErrors for what the service does not accept,
    RolloutServiceUnavailable when it could not be reached for `unavailable_after` seconds, and RolloutServiceError.
    """

    def __init__(
        self,
        target: str,
        *,
        tenant: str = "",
        unavailable_after: float = 60.0,
        security: ClientSecurity | None = None,
    ) -> None:
        """`tenant`: whose trajectories these are; empty: that of the token. `security`: TLS and the token; None: those
        of the environment (`fairbox.security.client_security`)."""
        self._target = target
        self._tenant = tenant
        self._unavailable_after = unavailable_after
        self._security = client_security() if security is None else security
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._target, security=self._security)
        return self

    async def __aexit__(self, *_: object) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def submit(self, tasks: Sequence[RolloutTask]) -> pb.SubmitTrajectoriesResponse:
        """Keeps up to 1,000 of them, all or none. Nothing comes any more for `gone` ids of the answer: they were
        acknowledged or cancelled before. Raises SubmissionRefused when there is no room."""
        request = pb.SubmitTrajectoriesRequest(tasks=[task.message() for task in tasks], tenant=self._tenant)
        # Again is safe: those that were taken are known by their ids.
        return await self._asked(lambda: self._stub.SubmitTrajectories(request, timeout=_CALL_S))

    def stream(self, *, max_unacknowledged: int = 64) -> TrajectoryStream:
        """Trajectories that have ended, as they end; see `TrajectoryStream`. At most so many are sent that were not
        acknowledged. A tenant has one stream: another one takes its place."""
        opening = pb.StreamOpening(
            tenant=self._tenant, max_unacknowledged=max_unacknowledged, name=secrets.token_hex(8)
        )
        return TrajectoryStream(self, opening)

    async def cancel(self, ids: Sequence[str]) -> int:
        """Ends trajectories and forgets what they came to; how many were there."""
        request = pb.CancelTrajectoriesRequest(ids=ids, tenant=self._tenant)
        response = await self._asked(lambda: self._stub.CancelTrajectories(request, timeout=_CALL_S))
        return response.cancelled

    async def update_weights(self, folder: str, *, version: str) -> None:
        """Gives the engine the weights of a folder, on the machines that serve, and calls them `version`."""
        request = pb.UpdateWeightsRequest(folder=folder, version=version)
        # Again is safe: the same weights under the same name.
        await self._asked(lambda: self._stub.UpdateWeights(request, timeout=_WEIGHTS_S))

    async def pause_engine(self, *, pause_s: float = 600.0) -> None:
        """Returns when nothing is sampled, for at most so many seconds. Again is safe, and begins that time anew."""
        request = pb.PauseEngineRequest(pause_s=pause_s)
        await self._asked(lambda: self._stub.PauseEngine(request, timeout=_WEIGHTS_S))

    async def resume_engine(self) -> None:
        """Lets the engine go on, behind a pause or an update that is still on its way. Again is safe."""
        await self._asked(lambda: self._stub.ResumeEngine(pb.ResumeEngineRequest(), timeout=_WEIGHTS_S))

    async def status(self) -> pb.GetStatusResponse:
        """The state of the service at one instant."""
        return await self._asked(lambda: self._stub.GetStatus(pb.GetStatusRequest(), timeout=_CALL_S))

    @property
    def _stub(self) -> RolloutServiceAsyncStub:
        if self._channel is None:
            raise RuntimeError("RolloutClient is used outside its `async with` block")
        return cast("RolloutServiceAsyncStub", rollout_pb2_grpc.RolloutServiceStub(self._channel))

    def _call(self) -> grpc.aio.StreamStreamCall[Any, Any]:
        return self._stub.StreamTrajectories()

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer. Asks again while the service can't be reached."""
        patience = Patience(self._target, self._unavailable_after)
        while True:
            try:
                return await ask()
            except grpc.aio.AioRpcError as error:
                await patience.after(error)


class Patience:
    """Patience with a service that is away. Call `answered` after each success, `after` for each error."""

    def __init__(self, target: str, longest_s: float) -> None:
        self._target = target
        self._longest_s = longest_s
        self._since: float | None = None
        self._wait_s = _AGAIN_S

    def answered(self) -> None:
        """It can be reached."""
        self._since, self._wait_s = None, _AGAIN_S

    async def after(self, error: grpc.aio.AioRpcError) -> None:
        """Waits before the next attempt. Raises what the error means if there is to be none."""
        details = error.details() or error.code().name
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT and (fields := field_errors(error)):
            raise FieldErrors(fields) from None
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and (after_s := retry_after(error)) is not None:
            raise SubmissionRefused(details, after_s) from None
        broken = error.code() is grpc.StatusCode.INTERNAL and details.startswith(_NOT_SENT)
        if error.code() is not grpc.StatusCode.UNAVAILABLE and not broken:
            raise RolloutServiceError(f"{self._target}: {error.code().name}: {details}") from None
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._longest_s:
            why = why_unavailable(details)
            raise RolloutServiceUnavailable(f"no rollout service on {self._target}: {why}") from None
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_AGAIN_S)


class TrajectoryStream:
    """`async with rollouts.stream() as stream: async for trajectory in stream: ...`, with
    `await stream.acknowledge(trajectory.id)` when the trainer has it for good: it comes again on the next stream else.

    It goes on by itself when the service was started again. Raises as `RolloutClient` does, and RolloutServiceError
    where another stream of the tenant took its place.
    """

    def __init__(self, client: RolloutClient, opening: pb.StreamOpening) -> None:
        self._client = client
        self._opening = opening
        self._call: grpc.aio.StreamStreamCall[Any, Any] | None = None
        self._patience = Patience(client._target, client._unavailable_after)
        self._given: set[str] = set()
        """Given and not acknowledged."""
        self._acknowledged: LRUCache[str, bool] = LRUCache(_ACKNOWLEDGED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        if error is None:  # acknowledgements that were sent are read to the last
            await call.done_writing()
            with_end = asyncio.ensure_future(_drained(call))
            await asyncio.wait([with_end], timeout=_CALL_S)
            with_end.cancel()
        call.cancel()

    def __aiter__(self) -> AsyncIterator[StreamedTrajectory]:
        return self

    async def __anext__(self) -> StreamedTrajectory:
        """The next one that has ended, as soon as there is one."""
        while True:
            try:
                message = await self._next()
            except grpc.aio.AioRpcError as error:
                self._call = None
                # Again is safe: the service sends everything that is not acknowledged, and what was given is known.
                await self._patience.after(error)
                continue
            if message.id in self._acknowledged:
                await self.acknowledge(message.id)  # the acknowledgement was lost
            elif message.id not in self._given:
                self._given.add(message.id)
                return StreamedTrajectory(message.id, trajectory_result(message))

    async def acknowledge(self, *ids: str) -> None:
        """Tells the service that these need not be kept. What is lost on the way is told again when they come again."""
        for each in ids:
            self._given.discard(each)
            self._acknowledged[each] = True
        if self._call is None:
            return
        acknowledgement = pb.Acknowledgement(ids=ids)
        try:
            await self._call.write(pb.StreamTrajectoriesRequest(acknowledge=acknowledgement))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream has ended, as whoever asks for the next one is told

    async def _next(self) -> pb.Trajectory:
        if self._call is None or self._call.cancelled():  # as gRPC does when a wait for the next one is cancelled
            self._call = self._client._call()
            await self._call.write(pb.StreamTrajectoriesRequest(open=self._opening))
            if ("rollout-stream", "open") in tuple(await self._call.initial_metadata() or ()):
                self._patience.answered()
        response = await self._call.read()
        if response is grpc.aio.EOF:
            raise RolloutServiceError(f"the stream has ended: {await self._call.details()}")
        return cast("pb.StreamTrajectoriesResponse", response).trajectory


async def _drained(call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        return
