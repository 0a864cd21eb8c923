"""The client of the rollout service, of one or of several: submits trajectories, and takes them as they end.

Invariants: an id has one service, which follows from its group, or from itself where it has none, and from the
addresses alone, so that every client and every life of a trainer asks the same one; a call to all of them raises the
first failure when all have ended.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from fairbox.errors import FieldError, FieldErrors
from fairbox.gathering import all_of
from fairbox.net.rendezvous import preferred
from fairbox.security import ClientSecurity, client_security
from rollout.service.replica import CALL_S, ServiceReplica
from rollout.service.streaming import TrajectoryStream
from rollout.v1 import rollout_pb2 as pb

if TYPE_CHECKING:
    from rollout.v1.rollout_pb2_grpc import RolloutServiceAsyncStub

_WEIGHTS_S = 660.0
"""Longer than an engine may take for them."""
T = TypeVar("T")


def service_targets(text: str) -> tuple[str, ...]:
    """The addresses in a target. Raises FieldErrors for one that is empty or there twice."""
    targets = tuple(each.strip() for each in text.split(","))
    if not all(targets) or len(set(targets)) < len(targets):
        raise FieldErrors([FieldError("target", f"is {text!r}, must be HOST:PORT, several with commas, each once")])
    return targets


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
    max_staleness: int | None = None
    """Most updates of the weights between those that sampled its oldest ids and those at its delivery, to 1,000; None:
    any. One that is staler is played again, three times at most, and masked after that."""

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
            max_staleness=self.max_staleness,
        )
        if self.problem is not None:
            message.problem = self.problem
        if self.problem_digest:
            message.problem_digest = self.problem_digest
        for each in self.messages:
            message.prompt.messages.add(role=each["role"], content=each["content"])
        return message


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
        """`target`: `a:50054`, or all replicas of a service, `a:50054,b:50054`, by names that they keep: a name decides
        which trajectories it gets. `tenant`: whose trajectories these are; empty: that of the token. `security`: TLS
        and the token; None: those of the environment (`fairbox.security.client_security`)."""
        security = client_security() if security is None else security
        self._replicas = {
            each: ServiceReplica(each, tenant=tenant, unavailable_after=unavailable_after, security=security)
            for each in service_targets(target)
        }
        self._tenant = tenant
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        for replica in self._replicas.values():
            await self._exits.enter_async_context(replica)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    @property
    def lost(self) -> int:
        """Trajectories that a service no longer had when it was started again, because its disk was lost. They were
        submitted again, and are played from their beginning."""
        return sum(each.lost for each in self._replicas.values())

    async def submit(self, tasks: Sequence[RolloutTask]) -> pb.SubmitTrajectoriesResponse:
        """Keeps up to 1,000 of them; each replica all of its own, or none. Nothing comes any more for `gone` ids of the
        answer: they were acknowledged or cancelled before. Raises SubmissionRefused when there is no room."""
        placed: dict[str, list[pb.TrajectoryTask]] = {}
        for task in tasks:
            placed.setdefault(preferred(self._replicas, task.group or task.id), []).append(task.message())
        answers = await all_of(self._replicas[target].submit(some) for target, some in placed.items())
        return pb.SubmitTrajectoriesResponse(
            accepted=sum(each.accepted for each in answers), gone=[name for each in answers for name in each.gone]
        )

    def stream(self, *, max_unacknowledged: int = 64) -> TrajectoryStream:
        """Trajectories that have ended, as they end; see `TrajectoryStream`. At most so many of each replica are sent
        that were not acknowledged. A tenant has one stream: another one takes its place."""
        opening = pb.StreamOpening(
            tenant=self._tenant, max_unacknowledged=max_unacknowledged, name=secrets.token_hex(8)
        )
        return TrajectoryStream([*self._replicas.values()], opening)

    async def cancel(self, ids: Sequence[str]) -> int:
        """Ends trajectories and forgets what they came to; how many were there."""
        for replica in self._replicas.values():
            replica.forget(ids)
        request = pb.CancelTrajectoriesRequest(ids=ids, tenant=self._tenant)
        answers = await self._all(lambda stub: stub.CancelTrajectories(request, timeout=CALL_S))
        return sum(each.cancelled for each in answers)

    async def update_weights(self, folder: str, *, version: str) -> None:
        """Gives the engine the weights of a folder, on the machines that serve, and calls them `version`."""
        request = pb.UpdateWeightsRequest(folder=folder, version=version)
        # Again is safe: the same weights under the same name.
        await self._all(lambda stub: stub.UpdateWeights(request, timeout=_WEIGHTS_S))

    async def pause_engine(self, *, pause_s: float = 600.0) -> None:
        """Returns when nothing is sampled, for at most so many seconds. Again is safe, and begins that time anew."""
        request = pb.PauseEngineRequest(pause_s=pause_s)
        await self._all(lambda stub: stub.PauseEngine(request, timeout=_WEIGHTS_S))

    async def resume_engine(self) -> None:
        """Lets the engine go on, behind a pause or an update that is still on its way. Again is safe."""
        await self._all(lambda stub: stub.ResumeEngine(pb.ResumeEngineRequest(), timeout=_WEIGHTS_S))

    async def status(self) -> dict[str, pb.GetStatusResponse]:
        """Address -> state of the service there at one instant."""
        answers = await self._all(lambda stub: stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_S))
        return dict(zip(self._replicas, answers, strict=True))

    async def _all(self, call: Callable[[RolloutServiceAsyncStub], Awaitable[T]]) -> list[T]:
        """The answers of all, in their order. Each is asked again while it can't be reached."""
        return await all_of(each.asked(call) for each in self._replicas.values())
