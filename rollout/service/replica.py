"""One rollout service as its client sees it, and what it was given that has not come.

Invariants: every call has a deadline, but for the stream, which lasts until it is left; what could not be reached is
asked again, which is safe, because each trajectory has an id; what was submitted and has not come is submitted again
whenever a stream begins, so that a service that lost its disk plays it again, and one that has it does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Self, TypeVar, cast

import grpc
import grpc.aio
from cachetools import LRUCache

from fairbox.errors import FairboxError, FieldErrors
from fairbox.net.channels import open_channel
from fairbox.net.grpc_errors import field_errors, retry_after, why_unavailable
from fairbox.security import ClientSecurity
from rollout.service.requests import MAX_TASKS
from rollout.v1 import rollout_pb2 as pb
from rollout.v1 import rollout_pb2_grpc

if TYPE_CHECKING:
    from rollout.v1.rollout_pb2_grpc import RolloutServiceAsyncStub

CALL_S = 60.0
_AGAIN_S = 0.2
_LONGEST_AGAIN_S = 5.0
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""CANCELLED is the status of calls that a server had not finished when it ended."""
_NOT_SENT = "Internal error from Core"
"""grpcio's own words for a request that it could not send any more, because the connection was lost in that moment."""
_OUTSTANDING = 100_000
"""Tasks that are submitted again when a stream begins; of more than that the oldest are not."""
_AGAIN_BYTES = 32 << 20
"""Most bytes of tasks in one request that submits some again: well below what a message may have."""
_LOG = logging.getLogger("fairbox.rollout")
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

    async def after(self, error: grpc.aio.AioRpcError, *, room: bool = False) -> None:
        """Waits before the next attempt, with `room` for room too. Raises what the error means if there is to be
        none."""
        details = error.details() or error.code().name
        failure: RolloutServiceError
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT and (fields := field_errors(error)):
            raise FieldErrors(fields) from None
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and (after_s := retry_after(error)) is not None:
            failure, again = SubmissionRefused(details, after_s), room
        elif error.code() in _AWAY or _not_sent(error):
            why = why_unavailable(details)
            failure, again = RolloutServiceUnavailable(f"no rollout service on {self._target}: {why}"), True
        else:
            failure, again = RolloutServiceError(f"{self._target}: {error.code().name}: {details}"), False
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if not again or now - self._since >= self._longest_s:
            raise failure from None
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_AGAIN_S)


class ServiceReplica:
    """`async with ServiceReplica(target, tenant="", unavailable_after=60.0, security=security) as replica`."""

    def __init__(self, target: str, *, tenant: str, unavailable_after: float, security: ClientSecurity) -> None:
        self.target = target
        self.lost = 0
        """Trajectories that it no longer had when they were submitted again."""
        self._tenant = tenant
        self._unavailable_after = unavailable_after
        self._security = security
        self._channel: grpc.aio.Channel | None = None
        self._outstanding: LRUCache[str, pb.TrajectoryTask] = LRUCache(_OUTSTANDING)

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self.target, security=self._security)
        return self

    async def __aexit__(self, *_: object) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    @property
    def stub(self) -> RolloutServiceAsyncStub:
        """Its methods. RuntimeError outside of the block."""
        if self._channel is None:
            raise RuntimeError("RolloutClient is used outside its `async with` block")
        return cast("RolloutServiceAsyncStub", rollout_pb2_grpc.RolloutServiceStub(self._channel))

    def patience(self) -> Patience:
        """Patience with it."""
        return Patience(self.target, self._unavailable_after)

    async def asked(self, call: Callable[[RolloutServiceAsyncStub], Awaitable[T]]) -> T:
        """The answer. Asks again while it can't be reached: `call` must be safe to repeat."""
        patience = self.patience()
        while True:
            try:
                return await call(self.stub)
            except grpc.aio.AioRpcError as error:
                await patience.after(error)

    async def submit(self, tasks: Sequence[pb.TrajectoryTask]) -> pb.SubmitTrajectoriesResponse:
        """Gives it tasks, all or none."""
        new = [task for task in tasks if task.id not in self._outstanding]
        self._outstanding.update((task.id, task) for task in new)  # before one of them can come
        request = pb.SubmitTrajectoriesRequest(tasks=tasks, tenant=self._tenant)
        try:
            # Again is safe: those that were taken are known by their ids.
            response = await self.asked(lambda stub: stub.SubmitTrajectories(request, timeout=CALL_S))
        except BaseException:
            self.forget(task.id for task in new)
            raise
        self.forget(response.gone)
        return response

    async def submit_again(self, answered: Callable[[], None]) -> None:
        """Submits what has not come: it does nothing for what is there still. What it has no room for now waits, for as
        long as a service that is away is waited for. Calls `answered` after each answer. Raises AioRpcError and
        SubmissionRefused."""
        waiting, most, patience = deque(self._outstanding.values()), MAX_TASKS, self.patience()
        while waiting:
            tasks = batch(waiting, most)
            request = pb.SubmitTrajectoriesRequest(tasks=tasks, tenant=self._tenant)
            try:
                response = await self.stub.SubmitTrajectories(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                answered()
                most = len(tasks) // 2
                if not most:  # all of a request, or none
                    most = 1
                    await patience.after(error, room=True)
                continue
            answered()
            patience.answered()
            most = min(2 * most, MAX_TASKS)
            for _ in tasks:
                waiting.popleft()
            self.forget(response.gone)
            self.lost += response.accepted
            if response.accepted:
                text = "the rollout service on %s had lost %d trajectories, which it plays again"
                _LOG.warning(text, self.target, response.accepted)

    def forget(self, ids: Iterable[str]) -> None:
        """Does not submit these again: they have come, or nobody wants them any more."""
        for each in ids:
            self._outstanding.pop(each, None)


def _not_sent(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and (error.details() or "").startswith(_NOT_SENT)


def batch(tasks: Iterable[pb.TrajectoryTask], most: int) -> list[pb.TrajectoryTask]:
    """The first tasks, at least one and at most `most`, with no more bytes than one request that submits some again."""
    found: list[pb.TrajectoryTask] = []
    size = 0
    for task in islice(tasks, most):
        size += task.ByteSize()
        if found and size > _AGAIN_BYTES:
            break
        found.append(task)
    return found
