"""The engine in this process: a transformers model on the CPU, with continuous batching in a thread of its own.

The embedded default where no inference server is at hand, and the reference that other engines are compared with.
Requests join the running batch after their own prefill and leave it when they finish. Everything is float32. With a
seed, a request's ids do not depend on its neighbours as far as float32 rounding allows.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from fairbox.clock import Clock, MonotonicClock
from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    GenerationRequest,
    GenerationResult,
    check_request,
)
from rollout.engines.decoder import Decoder
from rollout.engines.worker import BatchWorker

__all__ = ["TransformersEngine"]

PREFIX_BYTES = 512 << 20
"""Memory for contexts that may be extended; a 600-token context of SmolLM2-135M takes 28 MB."""


class TransformersEngine:
    """`async with TransformersEngine(model_dir) as engine`.

    max_batch: rows decoded at once; max_queued: requests that may wait; max_model_tokens: None for the model's own
    maximum; threads: of torch, None for one per core. Loading takes seconds and happens on entering, off the loop.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        max_batch: int = 8,
        max_queued: int = 4096,
        max_model_tokens: int | None = None,
        threads: int | None = None,
        prefix_bytes: int = PREFIX_BYTES,
        weight_version: str = "initial",
        clock: Clock | None = None,
    ) -> None:
        self._model_dir = model_dir
        self._max_batch = max_batch
        self._max_queued = max_queued
        self._max_model_tokens = max_model_tokens
        self._threads = threads or len(os.sched_getaffinity(0))
        self._prefix_bytes = prefix_bytes
        self._version = weight_version
        self._clock = clock or MonotonicClock()
        self._decoder: Decoder | None = None
        self._worker: BatchWorker | None = None

    @property
    def model_name(self) -> str:
        return self._model_dir.name

    @property
    def vocab_size(self) -> int:
        return self._loaded().vocab_size

    @property
    def max_model_tokens(self) -> int:
        return self._loaded().max_model_tokens

    async def __aenter__(self) -> Self:
        self._decoder = await asyncio.to_thread(self._load)
        self._worker = BatchWorker(
            self._decoder,
            max_running=self._max_batch,
            max_queued=self._max_queued,
            clock=self._clock,
            version=self._version,
        )
        self._worker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        worker, self._worker, self._decoder = self._worker, None, None
        if worker is not None:
            await asyncio.shield(asyncio.to_thread(worker.close))

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        decoder, worker = self._loaded(), self._worker
        assert worker is not None
        check_request(request, vocab_size=decoder.vocab_size, max_model_tokens=decoder.max_model_tokens)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[GenerationResult | EngineUnavailable] = loop.create_future()

        def settle(answer: GenerationResult | EngineUnavailable) -> None:
            if not answered.done():
                answered.set_result(answer)

        def deliver(answer: GenerationResult | EngineUnavailable) -> None:
            loop.call_soon_threadsafe(settle, answer)

        worker.submit(request, deliver)
        try:
            answer = await answered
        except asyncio.CancelledError:
            worker.abort(request.request_id)
            raise
        if isinstance(answer, EngineUnavailable):
            raise answer
        return answer

    def statistics(self) -> EngineStatistics:
        return EngineStatistics() if self._worker is None else self._worker.statistics()

    def _load(self) -> Decoder:
        torch.set_num_threads(self._threads)
        return Decoder(
            self._model_dir,
            max_rows=self._max_batch,
            max_model_tokens=self._max_model_tokens,
            prefix_bytes=self._prefix_bytes,
        )

    def _loaded(self) -> Decoder:
        if self._decoder is None:
            raise EngineUnavailable("the engine is closed")
        return self._decoder
