"""The capture gateway: an OpenAI-compatible endpoint that records exact tokens, one trajectory per base URL.

    async with CaptureGateway(engine, chat) as gateway:
        agent = MyAgent(base_url=gateway.base_url("task-7"), api_key="unused", model=engine.model_name)
        await agent.run()
        found = gateway.trajectory("task-7")

Invariants: a client that goes away takes its generation with it; leaving the block ends every request; trajectories and
requests are bounded, and idle ones are given up; a trajectory with a request in flight never is; what is removed is
gone, and a request that ends afterwards does not bring it back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from executor_service import Cause
from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from fairbox.tokens import read_token
from rollout.capture.errors import ApiError, UnknownTrajectoryError, not_found, overloaded
from rollout.capture.record import CapturedTrajectory, Entry, captured
from rollout.capture.recorder import Recorder
from rollout.capture.replies import Answer
from rollout.capture.requests import ChatRequest, RequestRules
from rollout.capture.sampler import TurnSampler
from rollout.capture.server import CaptureServer
from rollout.capture.settings import CaptureSettings
from rollout.engines.base import Engine, SamplingParams
from rollout.tokens import ChatTemplate
from rollout.tools import find_format

__all__ = ["CaptureGateway", "CaptureStatistics"]

_MAX_TOKENS = 1 << 20
"""Most tokens of a trajectory, all branches together: about 70 MB."""
_SWEEPS = 10
"""Sweeps for idle trajectories within one `idle_ttl_s`."""


@dataclass(frozen=True, slots=True)
class CaptureStatistics:
    """What the gateway is doing and has done."""

    trajectories: int
    """Held now."""
    running: int
    """Requests in flight now."""
    turns: int
    """Recorded, in all."""
    branches: int
    """Started, first ones included, in all."""
    tokens: int
    """Held now."""
    refused: int
    """Requests refused by a bound."""
    failures: int
    """Requests that failed by the service."""
    expired: int
    deleted: int


class CaptureGateway:
    """`async with CaptureGateway(engine, chat) as gateway`. The engine must be entered already, and outlive it.

    sampling: of requests that say nothing about it; token: what clients must send, empty for that of `token_file`.
    Raises ConfigError, and on entering FairboxError for an address that it can't have.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatTemplate,
        settings: CaptureSettings | None = None,
        *,
        sampling: SamplingParams | None = None,
        queue_timeout_s: float = 600.0,
        token: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings = settings or CaptureSettings()
        settings.validate()
        self.engine = engine
        self.chat = chat
        self._clock = clock or MonotonicClock()
        names = [name.strip() for name in settings.models.split(",") if name.strip()]
        self.rules = RequestRules(
            models=() if "*" in names else (engine.model_name, *names),
            sampling=replace(sampling or SamplingParams(), max_new_tokens=settings.max_turn_tokens),
            ignore=[name.strip() for name in settings.ignore_parameters.split(",")],
            special_tokens=chat.special_tokens,
            stop_token_ids=chat.stop_token_ids,
        )
        self._sampler = TurnSampler(
            engine,
            chat,
            find_format(settings.tool_format, chat),
            self._clock,
            queue_timeout_s=queue_timeout_s,
            request_timeout_s=settings.request_timeout_s,
        )
        self._entries: dict[str, Entry] = {}
        self._flights: dict[Entry, set[asyncio.Task[Answer]]] = {}
        self._server = CaptureServer(self, settings, token=token or read_token(settings.token_file, "token_file"))
        self._sweeper: asyncio.Task[None] | None = None
        self._tls = bool(settings.tls_cert)
        self._running = self._turns = self._branches = self._failures = 0
        self._refused = self._expired = self._deleted = 0

    @property
    def address(self) -> str:
        """`host:port` that it listens on."""
        return self._server.address

    def base_url(self, trajectory_id: str) -> str:
        """What an agent's client gets as its base URL."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self.address}/t/{trajectory_id}/v1"

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="capture-sweeper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._close())

    def trajectory(self, trajectory_id: str) -> CapturedTrajectory:
        """What is recorded so far. Raises UnknownTrajectoryError."""
        return captured(self._entry(trajectory_id))

    def trajectory_ids(self) -> tuple[str, ...]:
        """Those that are held."""
        return tuple(self._entries)

    def set_reward(self, trajectory_id: str, value: float) -> None:
        """Attaches a reward, instead of an earlier one. Raises UnknownTrajectoryError, and FieldErrors for NaN."""
        entry = self._entry(trajectory_id)
        if not abs(value) < float("inf"):
            raise FieldErrors([FieldError("reward", f"is {value}, must be a finite number")])
        entry.reward = value
        entry.used_at = self._clock.now()

    def delete(self, trajectory_id: str) -> None:
        """Forgets a trajectory and ends its requests. Raises UnknownTrajectoryError."""
        entry = self._entry(trajectory_id)
        self._remove(entry)
        self._deleted += 1
        for task in self._flights.get(entry, ()):
            task.cancel()

    def statistics(self) -> CaptureStatistics:
        """Live figures."""
        return CaptureStatistics(
            trajectories=len(self._entries),
            running=self._running,
            turns=self._turns,
            branches=self._branches,
            tokens=sum(entry.recorder.tokens for entry in self._entries.values()),
            refused=self._refused,
            failures=self._failures,
            expired=self._expired,
            deleted=self._deleted,
        )

    def begin(self, trajectory_id: str) -> Entry:
        """A request starts; its trajectory is made as needed. Give the entry to `end`. Raises ApiError when a bound is
        reached."""
        entry = self._entries.get(trajectory_id)
        if self._running >= self._settings.max_concurrent:
            raise self._refusal(entry, f"{self._running} requests are in flight, which is max_concurrent")
        if entry is None:
            if len(self._entries) >= self._settings.max_trajectories:
                self._expire()
            if len(self._entries) >= self._settings.max_trajectories:
                held = f"{len(self._entries)} trajectories are held, which is max_trajectories"
                raise self._refusal(None, f"{held}; DELETE those that are done")
            recorder = Recorder(self.chat, max_tokens=_MAX_TOKENS, max_model_tokens=self.engine.max_model_tokens)
            entry = self._entries[trajectory_id] = Entry(trajectory_id, recorder, self._clock.now())
        entry.running += 1
        entry.used_at = self._clock.now()
        self._running += 1
        return entry

    def end(self, entry: Entry) -> None:
        """The request ended, however it did. A trajectory that holds nothing then is not kept."""
        entry.running -= 1
        entry.used_at = self._clock.now()
        self._running -= 1
        if not entry.running and not entry.recorder.turns and entry.error is None and not entry.removed:
            self._remove(entry)

    def start(self, entry: Entry, asked: ChatRequest) -> asyncio.Task[Answer]:
        """Samples a turn in a task, which the caller awaits or cancels; deleting the trajectory cancels it, too."""
        task = asyncio.create_task(self._sample(entry, asked), name="capture-turn")
        self._flights.setdefault(entry, set()).add(task)
        task.add_done_callback(lambda done: self._landed(entry, done))
        return task

    async def _sample(self, entry: Entry, asked: ChatRequest) -> Answer:
        try:
            answer = await self._sampler.sample(entry, asked)
        except ApiError as error:
            self._failures += error.cause is Cause.INFRA
            raise
        except Exception as error:
            entry.failed(f"the gateway failed: {type(error).__name__}")
            self._failures += 1
            raise
        if entry.removed:
            raise not_found("the trajectory was deleted", code="trajectory_not_found")
        self._turns += 1
        self._branches += answer.turn.reason is not None
        return answer

    def _landed(self, entry: Entry, task: asyncio.Task[Answer]) -> None:
        if not task.cancelled():
            task.exception()  # a caller that is gone does not ask for it
        flights = self._flights[entry]
        flights.discard(task)
        if not flights:
            del self._flights[entry]

    def _refusal(self, entry: Entry | None, bound: str) -> ApiError:
        self._refused += 1
        if entry is not None:
            entry.failed(f"overloaded: {bound}")  # an agent that gives up now does so for no fault of its own
            self._failures += 1
        return overloaded(f"overloaded: {bound}")

    def _expire(self) -> None:
        """Gives up those that nobody used for `idle_ttl_s`."""
        before = self._clock.now() - self._settings.idle_ttl_s
        idle = [entry for entry in self._entries.values() if not entry.running and entry.used_at <= before]
        for entry in idle:
            self._remove(entry)
        self._expired += len(idle)

    def _remove(self, entry: Entry) -> None:
        entry.removed = True
        del self._entries[entry.trajectory_id]

    def _entry(self, trajectory_id: str) -> Entry:
        entry = self._entries.get(trajectory_id)
        if entry is None:
            raise UnknownTrajectoryError(f"trajectory {trajectory_id!r} is not held")
        return entry

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._settings.idle_ttl_s / _SWEEPS)
            self._expire()

    async def _close(self) -> None:
        await self._server.stop()
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()
            await asyncio.wait({sweeper})
