"""The capture gateway: an OpenAI-compatible endpoint that records exact tokens, one trajectory per base URL.

    async with CaptureGateway(engine, chat) as gateway:
        agent = MyAgent(base_url=gateway.base_url("task-7"), api_key="unused", model=engine.model_name)
        await agent.run()
        found = gateway.trajectory("task-7")

Invariants: a client that goes away takes its generation with it; leaving the block ends every request; trajectories and
requests are bounded, and idle ones are given up; a trajectory with a request in flight never is; what is removed is
gone, and a request that ends afterwards does not bring it back. The engine gets exactly the ids that are recorded as a
turn's context; a turn that was not sampled whole leaves nothing behind but the failure's note, and whatever happens,
what was reserved for it is given back.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from executor_service import Cause
from fairbox.apart import read_apart
from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from fairbox.extras import require
from rollout.capture.errors import ApiError, UnknownTrajectoryError, bad_parameter
from rollout.capture.record import CapturedTrajectory, captured
from rollout.capture.recorder import Pending, Recorder
from rollout.capture.replies import ReplyBody
from rollout.capture.requests import ChatRequest, RequestRules
from rollout.capture.settings import CaptureSettings
from rollout.capture.stops import find_stop, generate_until
from rollout.capture.turns import parse_turn
from rollout.engines.base import Engine, EngineUnavailable, GenerationRequest, GenerationResult, SamplingParams
from rollout.tokens import ChatTemplate
from rollout.tools import find_format

_MAX_TOKENS = 1 << 20
"""Most tokens of a trajectory, all branches together: about 70 MB."""
_SWEEPS = 10
"""Sweeps for idle trajectories within one `idle_ttl_s`."""


@dataclass(slots=True)
class CaptureStatistics:
    """Live figures and running totals of the gateway."""

    trajectories: int = 0
    """Held now."""
    running: int = 0
    """Requests in flight now."""
    turns: int = 0
    """Recorded, in all."""
    branches: int = 0
    """Started, first ones included, in all."""
    tokens: int = 0
    """Held now."""
    refused: int = 0
    """Requests refused by a bound."""
    failures: int = 0
    """Requests that failed by the service."""
    expired: int = 0
    deleted: int = 0


@dataclass(eq=False, slots=True)
class Entry:
    """One trajectory that is held."""

    trajectory_id: str
    recorder: Recorder
    used_at: float
    running: int = 0
    """Requests in flight, those among them whose body is still to be read."""
    flights: set[asyncio.Task[ReplyBody]] = field(default_factory=set)
    """Turns that are being sampled."""
    removed: bool = False
    reward: float | None = None
    error: str | None = None
    """The service's failure since the last turn; None if there was none."""
    failures: int = 0
    """Requests that failed by the service, in all."""


class CaptureGateway:
    """`async with CaptureGateway(engine, chat) as gateway`. The engine must be entered already, and outlive it.

    sampling: of requests that say nothing about it. Raises ConfigError, and on entering FairboxError for an address
    that it can't have.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatTemplate,
        settings: CaptureSettings | None = None,
        *,
        sampling: SamplingParams | None = None,
        queue_timeout_s: float = 600.0,
        clock: Clock | None = None,
    ) -> None:
        """ConfigError for settings that contradict each other, and without the extra `gateway`."""
        require("CaptureGateway", "gateway", "aiohttp")
        from rollout.capture.server import CaptureServer  # aiohttp, which the settings and the recorder don't need

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
        self._format = find_format(settings.tool_format, chat)
        self._queue_timeout_s = queue_timeout_s
        self._entries: dict[str, Entry] = {}
        self._server = CaptureServer(self, settings)
        self._sweeper: asyncio.Task[None] | None = None
        self._tls = bool(settings.tls_cert)
        self._figures = CaptureStatistics()

    @property
    def address(self) -> str:
        """`host:port` that it listens on."""
        return self._server.address

    def base_url(self, trajectory_id: str) -> str:
        """Returns the base URL for an agent's client."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self.address}/t/{trajectory_id}/v1"

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="capture-sweeper")
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    def trajectory(self, trajectory_id: str) -> CapturedTrajectory:
        """Returns what is recorded so far. Raises UnknownTrajectoryError."""
        entry = self._entry(trajectory_id)
        return captured(trajectory_id, entry.recorder, entry.reward, entry.error, entry.failures)

    def trajectory_ids(self) -> tuple[str, ...]:
        """Ids of the trajectories that are held."""
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
        self._figures.deleted += 1
        for task in entry.flights:
            task.cancel()

    def statistics(self) -> CaptureStatistics:
        """Live figures."""
        tokens = sum(entry.recorder.tokens for entry in self._entries.values())
        return replace(self._figures, trajectories=len(self._entries), tokens=tokens)

    def begin(self, trajectory_id: str) -> Entry:
        """A request starts; its trajectory is made as needed. Give the entry to `end`. Raises ApiError when a bound is
        reached."""
        entry = self._entries.get(trajectory_id)
        if self._figures.running >= self._settings.max_concurrent:
            raise self._refusal(entry, f"{self._figures.running} requests are in flight, which is max_concurrent")
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
        self._figures.running += 1
        return entry

    def end(self, entry: Entry) -> None:
        """The request ended, however it did. A trajectory that holds nothing then is not kept."""
        entry.running -= 1
        entry.used_at = self._clock.now()
        self._figures.running -= 1
        if not entry.running and not entry.recorder.turns and entry.error is None and not entry.removed:
            self._remove(entry)

    def start(self, entry: Entry, asked: ChatRequest) -> asyncio.Task[ReplyBody]:
        """Samples a turn in a task, which the caller awaits or cancels; deleting the trajectory cancels it, too."""
        task = asyncio.create_task(self._sample(entry, asked), name="capture-turn")

        def landed(task: asyncio.Task[ReplyBody]) -> None:
            entry.flights.discard(task)
            if not task.cancelled():
                task.exception()  # a caller that is gone does not ask for it

        entry.flights.add(task)
        task.add_done_callback(landed)
        return task

    async def _sample(self, entry: Entry, asked: ChatRequest) -> ReplyBody:
        """A recorded turn. Raises ApiError. Cancelling it ends the generation."""
        failures = entry.failures
        try:
            # Encoding a long text takes seconds.
            pending = await read_apart(asked.size, lambda: entry.recorder.plan(asked.messages, asked.tools))
            entry.recorder.reserve(pending, asked.params.max_new_tokens)
            params = replace(asked.params, max_new_tokens=pending.max_new_tokens)
            try:
                result = await self._generate(entry, pending, params, asked.stop_texts)
            except BaseException:
                entry.recorder.abandon(pending)
                raise
            if failures == entry.failures:  # what failed before this request began was overcome by asking again
                entry.error = None
            answer = self._recorded(entry, pending, asked, params, result)
        except ApiError as error:
            if error.cause is Cause.INFRA:
                self._failed(entry, error.message)
            raise
        except Exception as error:
            self._failed(entry, f"the gateway failed: {type(error).__name__}")
            raise
        if entry.removed:
            raise ApiError(404, "the trajectory was deleted", code="trajectory_not_found")
        self._figures.turns += 1
        self._figures.branches += answer.turn.reason is not None
        return answer

    async def _generate(
        self, entry: Entry, pending: Pending, params: SamplingParams, stops: Sequence[str]
    ) -> GenerationResult:
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            trajectory_id=entry.trajectory_id,
            input_ids=pending.ids,
            params=params,
            queue_timeout_s=self._queue_timeout_s,
        )
        limit_s = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await generate_until(self.engine, request, stops, self.chat.turn_text)
        except FieldErrors as errors:
            raise bad_parameter(errors.errors[0].field.removeprefix("params."), errors.errors[0].problem) from None
        except EngineUnavailable as error:
            raise ApiError(503, f"the engine is unavailable: {error}") from None
        except TimeoutError:
            raise ApiError(504, f"no turn within {limit_s:g} s, which is request_timeout_s") from None

    def _recorded(
        self, entry: Entry, pending: Pending, asked: ChatRequest, params: SamplingParams, result: GenerationResult
    ) -> ReplyBody:
        text = self.chat.turn_text(result.ids)
        stopped_at = result.ids[-1:]
        shown = text
        if stopped_at and stopped_at[0] != self.chat.end_of_turn and stopped_at[0] in params.stop_token_ids:
            shown = self.chat.turn_text(result.ids[:-1])
        parsed = parse_turn(
            shown[: find_stop(shown, asked.stop_texts)], self._format, asked.tools if asked.parse_calls else ()
        )
        turn = entry.recorder.commit(pending, result, parsed.message, text, params)
        return ReplyBody(
            trajectory_id=entry.trajectory_id,
            completion_id=f"chatcmpl-{uuid.uuid4().hex}",
            model=self.engine.model_name,
            created=int(time.time()),
            turn=turn,
            context_ids=pending.ids,
            problems=parsed.problems,
            decode=self.chat.decode,
            logprobs=asked.logprobs,
            token_ids=asked.token_ids,
        )

    def _failed(self, entry: Entry, error: str) -> None:
        """A request failed by the service."""
        entry.failures += 1
        entry.error = error
        self._figures.failures += 1

    def _refusal(self, entry: Entry | None, bound: str) -> ApiError:
        self._figures.refused += 1
        if entry is not None:
            self._failed(entry, f"overloaded: {bound}")  # an agent that gives up now does so for no fault of its own
        return ApiError(429, f"overloaded: {bound}")

    def _expire(self) -> None:
        """Gives up those that nobody used for `idle_ttl_s`."""
        before = self._clock.now() - self._settings.idle_ttl_s
        idle = [entry for entry in self._entries.values() if not entry.running and entry.used_at <= before]
        for entry in idle:
            self._remove(entry)
        self._figures.expired += len(idle)

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
