"""The engine in this process: a transformers model, with continuous batching in a thread of its own.

The embedded default where no inference server is at hand, and the reference that other engines are compared with.
Requests join the running batch after their own prefill and leave it when they finish. Everything is float32. With a
seed, a request's ids do not depend on its neighbours as far as float32 rounding allows.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Self

from fairbox.clock import MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from fairbox.loading import load_apart
from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    GenerationRequest,
    GenerationResult,
    check_request,
    derived_seed,
)
from rollout.engines.gate import TurnFigures, TurnGate
from rollout.engines.local.decoder import Decoder
from rollout.engines.local.device import check_device
from rollout.engines.local.worker import BatchWorker
from rollout.engines.turn import Turn
from rollout.engines.weights import DiskWeights, Interrupt, StateWeights, WeightSource

_PREFIX_BYTES = 512 << 20
"""Memory for contexts that may be extended; a 600-token context of SmolLM2-135M takes 28 MB."""


class TransformersEngine:
    """`async with TransformersEngine(model_dir) as engine`.

    max_batch: rows decoded at once; max_queued: requests that may wait; max_model_tokens: None for the model's own
    maximum; device: of torch, such as cpu or cuda:1. Loading takes seconds and happens on entering, off the loop; it
    raises ConfigError for a device that torch does not have.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        max_batch: int = 8,
        max_queued: int = 4096,
        max_model_tokens: int | None = None,
        device: str = "cpu",
        weight_version: str = "initial",
        interrupt: Interrupt = Interrupt.CONTINUE,
    ) -> None:
        self._model_dir = model_dir
        self._max_batch = max_batch
        self._max_queued = max_queued
        self._max_model_tokens = max_model_tokens
        self._device = device
        self._version = weight_version
        self._interrupt = interrupt
        self._gate = TurnGate()
        self._figures = TurnFigures()
        self._paused = False
        self._interrupts = 0
        self._clock = MonotonicClock()
        self._decoder: Decoder | None = None
        self._worker: BatchWorker | None = None

    @property
    def model_name(self) -> str:
        return self._model_dir.name

    @property
    def weight_version(self) -> str:
        return self._version

    @property
    def vocab_size(self) -> int:
        return self._loaded().vocab_size

    @property
    def max_model_tokens(self) -> int:
        return self._loaded().max_model_tokens

    async def __aenter__(self) -> Self:
        self._decoder = await load_apart(self._load)
        self._worker = BatchWorker(
            self._decoder,
            max_running=self._max_batch,
            max_queued=self._max_queued,
            version=self._version,
        )
        self._gate.open()
        self._paused = False
        self._worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        worker, self._worker, self._decoder = self._worker, None, None
        if worker is not None:
            self._gate.open()  # who waits is told that it is closed
            await asyncio.shield(asyncio.to_thread(worker.close))

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        decoder = self._loaded()
        check_request(request, vocab_size=decoder.vocab_size, max_model_tokens=decoder.max_model_tokens)
        turn = Turn(request)
        with self._figures.turn():
            while turn.finish is None:
                await self._advance(turn)
        result = turn.result()
        self._figures.count(finished=1, sampled_tokens=len(result.ids))
        return result

    async def check_health(self, *, timeout_s: float = 5.0) -> str:
        """The weight version. Raises EngineUnavailable when the model broke or is not loaded."""
        self._loaded()
        if self._worker is not None and self._worker.broken is not None:
            raise EngineUnavailable(self._worker.broken)
        return self._version

    async def pause(self, mode: Interrupt | None = None, *, timeout_s: float = 600.0) -> None:
        self._loaded()
        assert self._worker is not None
        self._paused = True
        self._gate.close()
        try:
            if (mode or self._interrupt) is Interrupt.CONTINUE:
                self._interrupts += 1
                self._worker.interrupt()
            await self._gate.drained(timeout_s)
        except BaseException:
            await self.resume()
            raise

    async def resume(self) -> None:
        self._paused = False
        self._gate.open()

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        """As `WeightedEngine`; takes checkpoint folders, and the state of a model in this process."""
        if not version:
            raise FieldErrors([FieldError("version", "is empty, must name the weights")])
        paused = self._paused
        if not paused:
            await self.pause(timeout_s=timeout_s)
        try:
            await self._replace(source, version, timeout_s)
        finally:
            if not paused:
                await self.resume()

    async def _replace(self, source: DiskWeights | StateWeights, version: str, timeout_s: float) -> None:
        self._loaded()
        assert self._worker is not None
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(self._worker.load(source, version))
        except TimeoutError:
            raise EngineUnavailable(f"the weights {version!r} were not loaded within {timeout_s:g} s") from None
        self._version = version

    async def _advance(self, turn: Turn) -> None:
        """One part of a turn."""
        waiting = self._clock.now()
        async with self._gate.turn(turn.queue_left_s):
            turn.waited(self._clock.now() - waiting)
            interrupts, asked = self._interrupts, turn.next_request()
            part = await self._part(asked, turn.sampled)
        self._figures.count(prompt_tokens=len(asked.input_ids), cached_tokens=part.cached_tokens)
        turn.add(part, interrupted=interrupts != self._interrupts)

    async def _part(self, request: GenerationRequest, sampled: int) -> GenerationResult:
        self._loaded()
        worker, params = self._worker, request.params
        assert worker is not None
        if sampled:
            params = replace(params, seed=derived_seed(params.seed, "id", sampled))
        try:
            return await asyncio.wrap_future(worker.submit(replace(request, params=params)))
        except asyncio.CancelledError:
            worker.abort(request.request_id)
            raise

    def statistics(self) -> EngineStatistics:
        return self._figures.statistics(running=0 if self._worker is None else self._worker.running)

    def _load(self) -> Decoder:
        check_device("engine.device", self._device)
        return Decoder(
            self._model_dir,
            device=self._device,
            max_rows=self._max_batch,
            max_model_tokens=self._max_model_tokens,
            prefix_bytes=_PREFIX_BYTES,
        )

    def _loaded(self) -> Decoder:
        if self._decoder is None:
            raise EngineUnavailable("the engine is closed")
        return self._decoder
