"""The engine over an sglang server's native HTTP interface: token ids in; ids, logprobs and weight versions out.

Invariants: a request that no server could serve is refused before any work (an id outside the vocabulary would end the
server); each part of a turn goes out under a fresh id of fixed length, so that no abort meets another request and none
is sent twice under one name; a turn that was cut off by a weight update, of this engine's or of another client's, goes
on from what it has; every wait has a deadline; what is cancelled here is ended there.

It does not choose between servers (`ReplicatedEngine` does) and starts none (`launch` does).

`check_logprobs`: the distribution after temperature is told from the one before it by asking for one id twice: the
distance between the logprobs of the most probable id and of the 20th is (logit difference) / temperature, so at
temperature 0.5 it is twice that at 1. A server started with SGLANG_RETURN_ORIGINAL_LOGPROB=1 gives the same distance
both times.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from fairbox.clock import Clock, MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from rollout.engines import sglang_control
from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    GenerationRequest,
    GenerationResult,
    check_request,
)
from rollout.engines.gate import TurnGate
from rollout.engines.sglang_http import SglangHttp, check_url
from rollout.engines.sglang_part import PartRunner
from rollout.engines.turn import Turn
from rollout.engines.weights import Interrupt, WeightSource

__all__ = [
    "ServerFacts",
    "SglangEngine",
    "check_logprobs",
    "read_facts",
]

_CONTROL_S = 10.0
"""For a control call that the server answers at once."""
_STARTED_S = 60.0
"""For the first answers of a server, whose kernels may be compiled by them."""
_EMPTY_PART_PAUSE_S = 0.1
"""Before a turn that got nothing is sent again, so that a server that refuses all is not asked in circles."""


class SglangEngine:
    """`async with SglangEngine("http://127.0.0.1:30000", vocab_size=49152) as engine`.

    vocab_size: of the model's configuration, which the server does not tell. worker_urls: with `url` a router's, the
    servers behind it, which get the control calls. max_requests: turns at once; more are refused. turn_timeout_s:
    longest time from a turn's first id to its last where the request has no `time_limit_s`; then EngineUnavailable.
    interrupt: what a weight update does to turns that run. api_key: the server's, if it has one.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        worker_urls: tuple[str, ...] = (),
        api_key: str | None = None,
        model_name: str | None = None,
        max_requests: int = 4096,
        turn_timeout_s: float = 3600.0,
        interrupt: Interrupt = Interrupt.CONTINUE,
        verify_logprobs: bool = True,
        clock: Clock | None = None,
    ) -> None:
        for field, value in (("vocab_size", vocab_size), ("max_requests", max_requests)):
            if value < 1:
                raise FieldErrors([FieldError(field, f"is {value}, must be at least 1")])
        self.url = check_url(url, "url")
        self._server = SglangHttp(self.url, api_key=api_key)
        workers = [check_url(each, f"worker_urls[{index}]") for index, each in enumerate(worker_urls)]
        self._workers = [SglangHttp(each, api_key=api_key) for each in workers] or [self._server]
        self.vocab_size = vocab_size
        self._model_name = model_name
        self._max_requests = max_requests
        self._turn_timeout_s = turn_timeout_s
        self._interrupt = interrupt
        self._verify = verify_logprobs
        self._clock = clock or MonotonicClock()
        self._gate = TurnGate()
        self._facts: ServerFacts | None = None
        self._version = ""
        self._paused = False
        self._closing = True
        self._parts: PartRunner | None = None
        self._stack: contextlib.AsyncExitStack | None = None
        self._statistics = EngineStatistics()
        self._busy_since = 0.0
        self._turns = self._interrupted = 0

    @property
    def model_name(self) -> str:
        return self._model_name or self.facts.model_path.rstrip("/").rpartition("/")[2]

    @property
    def max_model_tokens(self) -> int:
        return self.facts.max_model_tokens

    @property
    def weight_version(self) -> str:
        return self._version

    @property
    def facts(self) -> ServerFacts:
        """What the server said of itself when this was entered."""
        if self._facts is None:
            raise EngineUnavailable("the engine is closed")
        return self._facts

    async def __aenter__(self) -> Self:
        """Raises EngineUnavailable when the server does not answer or is not what it must be."""
        async with contextlib.AsyncExitStack() as stack:
            for server in dict.fromkeys([self._server, *self._workers]):
                await stack.enter_async_context(server)
            every = [await read_facts(server, timeout_s=_STARTED_S) for server in self._workers]
            if self._verify:
                for server in self._workers:
                    await check_logprobs(server, timeout_s=_STARTED_S)
            self._facts = replace(every[0], max_model_tokens=min(each.max_model_tokens for each in every))
            self._version = self._facts.weight_version
            self._parts = PartRunner(
                self._server,
                self._workers,
                vocab_size=self.vocab_size,
                incremental=self._facts.incremental,
                turn_timeout_s=self._turn_timeout_s,
                clock=self._clock,
            )
            self._stack = stack.pop_all()
        self._closing = self._paused = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._close())

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        self._check_open()
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        if self._turns >= self._max_requests:
            raise EngineUnavailable(f"the engine has {self._turns} turns already, its max_requests")
        turn = Turn(request)
        async with self._counted():
            while turn.finish is None:
                await self._advance(turn)
        result = turn.result()
        self._count(finished=1, sampled_tokens=len(result.ids))
        return result

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        """The weight version that every server has. Raises EngineUnavailable when one does not answer."""
        versions = {await sglang_control.weight_version(server, timeout_s=timeout_s) for server in self._workers}
        if len(versions) > 1:
            raise EngineUnavailable(f"{self.url}: its servers have different weights: {', '.join(sorted(versions))}")
        self._version = versions.pop()
        return self._version

    async def pause(self, mode: Interrupt | None = None, *, timeout_s: float = 600.0) -> None:
        """As `WeightedEngine`. The server is paused too: turns of its other clients end with what they have."""
        self._check_open()
        self._paused = True
        self._gate.close()
        began = self._clock.now()
        try:
            if (mode or self._interrupt) is Interrupt.FINISH:
                await self._gate.drained(timeout_s)
            # A request that comes to the server after this waits there, and then runs under the new weights alone.
            left = max(_CONTROL_S, timeout_s - (self._clock.now() - began))
            await self._everywhere(lambda server: sglang_control.pause(server, timeout_s=left))
        except BaseException:
            with contextlib.suppress(EngineUnavailable):
                await asyncio.shield(self.resume())
            raise

    async def resume(self) -> None:
        try:
            await self._everywhere(lambda server: sglang_control.resume(server, timeout_s=_CONTROL_S))
        finally:
            self._paused = False
            self._gate.open()

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        sglang_control.check_source(source, version)
        self._check_open()
        paused = self._paused
        if not paused:
            await self.pause(timeout_s=timeout_s)
        try:
            await self._everywhere(lambda server: sglang_control.load(server, source, version, timeout_s=timeout_s))
            if await self.check_health(timeout_s=_CONTROL_S) != version:
                raise EngineUnavailable(f"{self.url}: says its weights are {self._version}, not {version}")
        finally:
            if not paused:
                await asyncio.shield(self.resume())

    def statistics(self) -> EngineStatistics:
        started = 0 if self._parts is None else self._parts.started
        busy = self._clock.now() - self._busy_since if self._turns else 0.0
        return replace(
            self._statistics,
            running=started,
            queued=self._turns - started,
            extra={"interrupted": self._interrupted},
            busy_s=self._statistics.busy_s + busy,
        )

    async def _advance(self, turn: Turn) -> None:
        """One part of a turn."""
        waiting = self._clock.now()
        async with self._gate.turn(turn.queue_left_s):
            turn.waited(self._clock.now() - waiting)
            self._check_open()
            assert self._parts is not None
            part, answer = await self._parts.run(turn.next_request())
        self._count(prompt_tokens=answer.prompt_tokens, cached_tokens=answer.cached_tokens)
        turn.add(part)
        self._interrupted += turn.finish is None
        if turn.finish is None and not part.ids:
            if not turn.queue_left_s:
                raise EngineUnavailable(f"{self.url}: the turn was sent away until its time in the queue was over")
            await asyncio.sleep(_EMPTY_PART_PAUSE_S)
            turn.waited(_EMPTY_PART_PAUSE_S)

    async def _everywhere(self, call: sglang_control.Call) -> None:
        """Calls every server at once and waits for all of them; raises the first failure."""
        answers = await asyncio.gather(*(call(server) for server in self._workers), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    @contextlib.asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        """Keeps the figures of a turn while it is here."""
        if not self._turns:
            self._busy_since = self._clock.now()
        self._turns += 1
        try:
            yield
        except BaseException:
            self._count(aborted=1)
            raise
        finally:
            self._turns -= 1
            if not self._turns:
                self._count(busy_s=self._clock.now() - self._busy_since)

    def _count(self, **more: float) -> None:
        sums = {name: getattr(self._statistics, name) + value for name, value in more.items()}
        self._statistics = replace(self._statistics, **sums)

    def _check_open(self) -> None:
        if self._closing:
            raise EngineUnavailable("the engine is closed")

    async def _close(self) -> None:
        """Ends what runs, there and here. Idempotent."""
        self._closing = True
        stack, self._stack = self._stack, None
        if stack is None:
            return
        assert self._parts is not None
        async with stack:
            if self._paused:
                with contextlib.suppress(EngineUnavailable):
                    await self.resume()
            self._gate.open()  # who waits is told that it is closed
            await self._parts.close()
        self._facts = None


_TOP = 20
_TOLERANCE = 0.25
"""Of the distance at temperature 1: far above the noise of bfloat16, far below the factor of two in question."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself."""

    model_path: str
    weight_version: str
    version: str
    """sglang's."""
    max_model_tokens: int
    """Prompt and sampled ids together, with what the server keeps for itself taken off."""
    honours_seeds: bool
    """Whether a request's seed fixes its ids: only with `--enable-deterministic-inference`."""
    incremental: bool
    """Whether the events of a stream hold only what is new."""


async def read_facts(server: SglangHttp, *, timeout_s: float) -> ServerFacts:
    """Asks /model_info and /server_info. Raises EngineUnavailable when they don't say what is needed."""
    model = await server.get("/model_info", timeout_s=timeout_s)
    info = await server.get("/server_info", timeout_s=timeout_s)
    try:
        return ServerFacts(
            model_path=str(model["model_path"]),
            weight_version=str(model["weight_version"]),
            version=str(info["version"]),
            max_model_tokens=int(info["max_req_input_len"]),
            honours_seeds=bool(info.get("enable_deterministic_inference")),
            incremental=bool(info.get("incremental_streaming_output")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnavailable(f"{server.url}: is no sglang server of a known version: {error!r}") from None


async def check_logprobs(server: SglangHttp, *, timeout_s: float) -> None:
    """Raises EngineUnavailable unless logprobs are of the distribution after temperature."""
    plain = await _distance(server, 1.0, timeout_s)
    sharp = await _distance(server, 0.5, timeout_s)
    if abs(sharp - 2 * plain) > _TOLERANCE * plain:
        raise EngineUnavailable(
            f"{server.url}: its logprobs don't follow the temperature (distance {plain:.4g} at 1 and {sharp:.4g} at "
            "0.5, which should be twice that); start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
        )


async def _distance(server: SglangHttp, temperature: float, timeout_s: float) -> float:
    # `stream_interval` is not needed here, but in every turn: a server that does not know it is refused now.
    sampling = {"max_new_tokens": 1, "temperature": temperature, "ignore_eos": True, "stream_interval": 2}
    body: dict[str, Any] = {"rid": uuid.uuid4().hex, "input_ids": [1, 2, 3], "sampling_params": sampling}
    body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": _TOP}
    answer = await server.post("/generate", body, timeout_s=timeout_s)
    try:
        logprobs = [float(entry[0]) for entry in answer["meta_info"]["output_top_logprobs"][0]]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EngineUnavailable(f"{server.url}: gave no logprobs: {error!r}") from None
    return max(logprobs) - min(logprobs)
