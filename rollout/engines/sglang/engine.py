"""The engine over an sglang server's native HTTP interface: token ids in; ids, logprobs and weight versions out.

Invariants: a request that no server could serve is refused before any work (an id outside the vocabulary would end the
server); each part of a turn goes out under a fresh id of fixed length, so that no abort meets another request and none
is sent twice under one name; a turn that was cut off by a weight update, of this engine's or of another client's, goes
on from what it has; every wait has a deadline; what is cancelled here is ended there.

It does not choose between servers (`ReplicatedEngine` does) and starts none (`launch` does).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self

from fairbox.clock import MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from fairbox.gathering import all_of
from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    GenerationRequest,
    GenerationResult,
    check_request,
)
from rollout.engines.gate import TurnFigures, TurnGate
from rollout.engines.http import check_url
from rollout.engines.sglang.part import PartRunner
from rollout.engines.sglang.server import ServerInfo, SglangServer, check_source
from rollout.engines.turn import Turn
from rollout.engines.weights import Interrupt, WeightSource

_CONTROL_S = 10.0
"""For a control call that the server answers at once."""
_STARTED_S = 60.0
"""For the first answers of a server, whose kernels may be compiled by them."""
_EMPTY_PART_PAUSE_S = 0.1
"""Before a turn that got nothing is sent again, so that a server that refuses all is not asked in circles."""


class SglangEngine:
    """`async with SglangEngine("http://127.0.0.1:30000", vocab_size=49152) as engine`.

    vocab_size: of the model's configuration, which the server does not tell. worker_urls: with `url` a router's, the
    servers behind it, which get the control calls. interrupt: what a weight update does to turns that run. api_key: the
    server's, if it has one.
    """

    def __init__(
        self,
        url: str,
        *,
        vocab_size: int,
        worker_urls: tuple[str, ...] = (),
        api_key: str | None = None,
        model_name: str | None = None,
        interrupt: Interrupt = Interrupt.CONTINUE,
    ) -> None:
        if vocab_size < 1:
            raise FieldErrors([FieldError("vocab_size", f"is {vocab_size}, must be at least 1")])
        self.url = check_url(url, "url")
        self._server = SglangServer(self.url, api_key=api_key)
        workers = [check_url(each, f"worker_urls[{index}]") for index, each in enumerate(worker_urls)]
        self._workers = [SglangServer(each, api_key=api_key) for each in workers] or [self._server]
        self.vocab_size = vocab_size
        self._model_name = model_name
        self._interrupt = interrupt
        self._clock = MonotonicClock()
        self._gate = TurnGate()
        self._facts: ServerInfo | None = None
        self._version = ""
        self._paused = False
        self._closing = True
        self._parts: PartRunner | None = None
        self._stack: contextlib.AsyncExitStack | None = None
        self._figures = TurnFigures()

    @property
    def model_name(self) -> str:
        return self._model_name or self._open_facts().model_path.rstrip("/").rpartition("/")[2]

    @property
    def max_model_tokens(self) -> int:
        return self._open_facts().max_model_tokens

    @property
    def weight_version(self) -> str:
        return self._version

    async def __aenter__(self) -> Self:
        """Raises EngineUnavailable when the server does not answer or is not what it must be."""
        async with contextlib.AsyncExitStack() as stack:
            for server in dict.fromkeys([self._server, *self._workers]):
                await stack.enter_async_context(server)
            every = [await server.facts(timeout_s=_STARTED_S) for server in self._workers]
            for server in self._workers:
                await server.check_logprobs(timeout_s=_STARTED_S)
            self._facts = replace(every[0], max_model_tokens=min(each.max_model_tokens for each in every))
            self._version = self._facts.weight_version
            self._parts = PartRunner(
                self._server, self._workers, vocab_size=self.vocab_size, incremental=self._facts.incremental
            )
            self._stack = stack.pop_all()
        self._closing = self._paused = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        self._check_open()
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        turn = Turn(request)
        with self._figures.turn():
            while turn.finish is None:
                await self._advance(turn)
        result = turn.result()
        self._figures.count(finished=1, sampled_tokens=len(result.ids))
        return result

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        """The weight version that every server has. Raises EngineUnavailable when one does not answer."""
        versions = {await server.weight_version(timeout_s=timeout_s) for server in self._workers}
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
            await self._everywhere(lambda server: server.pause(timeout_s=left))
        except BaseException:
            with contextlib.suppress(EngineUnavailable):
                await asyncio.shield(self.resume())
            raise

    async def resume(self) -> None:
        try:
            await self._everywhere(lambda server: server.resume(timeout_s=_CONTROL_S))
        finally:
            self._paused = False
            self._gate.open()

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        folder = check_source(source, version)
        self._check_open()
        paused = self._paused
        if not paused:
            await self.pause(timeout_s=timeout_s)
        try:
            await self._everywhere(lambda server: server.load(folder, version, timeout_s=timeout_s))
            if await self.check_health(timeout_s=_CONTROL_S) != version:
                raise EngineUnavailable(f"{self.url}: says its weights are {self._version}, not {version}")
        finally:
            if not paused:
                await asyncio.shield(self.resume())

    def statistics(self) -> EngineStatistics:
        started = 0 if self._parts is None else self._parts.started
        return self._figures.statistics(running=started)

    async def _advance(self, turn: Turn) -> None:
        """One part of a turn."""
        waiting = self._clock.now()
        async with self._gate.turn(turn.queue_left_s):
            turn.waited(self._clock.now() - waiting)
            self._check_open()
            assert self._parts is not None
            asked = turn.next_request()
            part, interrupted = await self._parts.run(asked)
        self._figures.count(prompt_tokens=len(asked.input_ids), cached_tokens=part.cached_tokens)
        turn.add(part, interrupted=interrupted)
        if turn.finish is None and not part.ids:
            if not turn.queue_left_s:
                raise EngineUnavailable(f"{self.url}: the turn was sent away until its time in the queue was over")
            await asyncio.sleep(_EMPTY_PART_PAUSE_S)
            turn.waited(_EMPTY_PART_PAUSE_S)

    async def _everywhere(self, call: Callable[[SglangServer], Awaitable[None]]) -> None:
        """Calls every server at once and waits for all of them; raises the first failure."""
        await all_of(call(server) for server in self._workers)

    def _open_facts(self) -> ServerInfo:
        """Returns the facts that the server reported when this was entered."""
        if self._facts is None:
            raise EngineUnavailable("the engine is closed")
        return self._facts

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
