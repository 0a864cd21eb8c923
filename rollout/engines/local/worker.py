"""The thread that owns the model: takes requests, steps the batch, delivers results.

Invariants: only this thread touches the model; every accepted request gets exactly one answer, a result or an error; it
sleeps while there is nothing to do. Decisions about queue and rows are BatchSchedule's.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import torch

from fairbox.clock import MonotonicClock
from rollout.engines.base import (
    EngineUnavailable,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    VersionSpan,
)
from rollout.engines.local.decoder import Decoder
from rollout.engines.local.schedule import BatchSchedule, QueueFullError
from rollout.engines.weights import DiskWeights, StateWeights


def new_generator(params: SamplingParams, device: torch.device) -> torch.Generator:
    """The generator of one request, seeded by `params.seed` or by the operating system. A seed means the same on every
    device of a kind."""
    generator = torch.Generator(device)
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


def sample(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator) -> tuple[int, float]:
    """(id, logprob) for the logits of one position: float32 (vocabulary,)."""
    if params.temperature == 0:
        token = int(logits.argmax())
        return token, float(torch.log_softmax(logits, dim=-1)[token])
    logprobs = torch.log_softmax(logits / params.temperature, dim=-1)
    token = int(torch.multinomial(_cut(logprobs, params).exp(), 1, generator=generator))
    return token, float(logprobs[token])


def _cut(logprobs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """`logprobs` with -inf outside the `top_k` most probable ids, and then outside the top-p set of what is left."""
    if 0 < params.top_k < logprobs.numel():
        smallest = logprobs.topk(params.top_k).values[-1]
        logprobs = logprobs.masked_fill(logprobs < smallest, float("-inf"))
    if params.top_p < 1:
        ordered, order = logprobs.sort(descending=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        logprobs = logprobs.masked_fill(
            torch.zeros_like(logprobs, dtype=torch.bool).scatter(0, order, before >= params.top_p), float("-inf")
        )
    return logprobs


@dataclass(frozen=True, slots=True)
class _Interrupt:
    """Answer everything with what it has."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Take other weights."""

    source: DiskWeights | StateWeights
    version: str
    answer: Future[None] = field(default_factory=Future)


@dataclass(eq=False, slots=True)
class _Work:
    """One request on its way."""

    request: GenerationRequest
    submitted: float
    answer: Future[GenerationResult] = field(default_factory=Future)
    started: float = 0.0
    cached: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    generator: torch.Generator | None = None

    @property
    def context(self) -> list[int]:
        """The ids whose keys and values are computed: all but the last one sampled."""
        return [*self.request.input_ids, *self.ids[:-1]]


class BatchWorker:
    """`submit`, `abort`, `interrupt` and `load` may be called from any thread."""

    def __init__(self, decoder: Decoder, *, max_running: int, max_queued: int, version: str) -> None:
        self._decoder = decoder
        self._schedule = BatchSchedule(max_running=max_running, max_queued=max_queued)
        self._clock = MonotonicClock()
        self._version = version
        self._work: dict[str, _Work] = {}
        self._inbox: deque[_Work | _Interrupt | _Load | str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._broken: str | None = None
        self._thread = threading.Thread(target=self._run, name="fairbox-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerationRequest) -> Future[GenerationResult]:
        """Queues a request. The answer raises EngineUnavailable, for a full queue too."""
        work = _Work(request, self._clock.now())
        self._post(work)
        return work.answer

    def abort(self, request_id: str) -> None:
        """Ends a request without an answer. Unknown ids are fine."""
        self._post(request_id)

    def interrupt(self) -> None:
        """Answers every request with the ids it has, none for those that wait, as FinishReason.ABORT."""
        self._post(_Interrupt())

    def load(self, source: DiskWeights | StateWeights, version: str) -> Future[None]:
        """Replaces the weights; requests that run then must have been interrupted. Old weights stay if it fails: the
        answer raises EngineUnavailable."""
        load = _Load(source, version)
        self._post(load)
        return load.answer

    def close(self) -> None:
        """Ends everything and waits for the thread, for at most one forward pass. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def broken(self) -> str | None:
        """Why nothing can be sampled any more."""
        return self._broken

    @property
    def running(self) -> int:
        """Requests that have a row."""
        return len(self._schedule.running)

    def _post(self, item: _Work | _Interrupt | _Load | str) -> None:
        with self._wake:
            if not self._closing:
                self._inbox.append(item)
                self._wake.notify()
                return
        _refuse(item, "the engine is closed")

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_news, timeout=0.0 if self._has_work() else None)
                if self._closing:
                    break
                news = list(self._inbox)
                self._inbox.clear()
            for item in news:
                self._take(item)
            try:
                self._advance()
            except Exception as error:  # the boundary of this thread: whatever broke, every caller must hear of it
                self._broken = f"the engine failed: {type(error).__name__}: {error}"
                self._fail_all(self._broken)
        self._fail_all("the engine was closed")

    def _has_news(self) -> bool:
        return self._closing or bool(self._inbox)

    def _has_work(self) -> bool:
        """Rows that are decoded, or requests for rows that became free in the last step."""
        return bool(self._schedule.running or self._schedule.queued)

    def _take(self, item: _Work | _Interrupt | _Load | str) -> None:
        if isinstance(item, str):
            if item in self._work:
                self._free(self._work[item])
        elif isinstance(item, _Interrupt):
            for work in list(self._work.values()):
                self._finish(work, FinishReason.ABORT, self._clock.now())
        elif isinstance(item, _Load):
            _answer(item.answer, self._load(item))
        else:
            self._submit(item)

    def _load(self, item: _Load) -> EngineUnavailable | None:
        if self._work:
            return EngineUnavailable("the weights were not replaced: turns run")
        try:
            self._decoder.load(item.source)
        except Exception as error:  # the boundary to files of any origin, whose readers raise anything
            return EngineUnavailable(f"the weights were not replaced: {type(error).__name__}: {error}")
        self._version = item.version
        return None

    def _submit(self, item: _Work) -> None:
        name = item.request.request_id
        if self._broken is not None:
            _refuse(item, self._broken)
        elif name in self._work:
            _refuse(item, f"request_id {name} is in use")
        else:
            try:
                self._schedule.submit(name, expires=item.submitted + item.request.queue_timeout_s)
            except QueueFullError:
                _refuse(item, f"the engine's queue is full ({self._schedule.queued} wait)")
                return
            self._work[name] = item

    def _advance(self) -> None:
        """One step: expiries, new rows with their first id, then one more id for every row."""
        for name in self._schedule.expire(self._clock.now()):
            work = self._work[name]
            self._free(work)
            _refuse(work, f"waited {work.request.queue_timeout_s:.3g} s in the engine's queue")
        while (admitted := self._schedule.admit()) is not None:
            self._begin(*admitted)
        if rows := [self._work[name] for name in self._schedule.running]:
            positions = [len(work.request.input_ids) + len(work.ids) - 1 for work in rows]
            logits = self._decoder.step([work.ids[-1] for work in rows], positions)
            for row, work in enumerate(rows):
                self._append(work, logits[row])
            for work in rows:
                self._settle(work)

    def _begin(self, name: str, row: int) -> None:
        work = self._work[name]
        work.started = self._clock.now()
        work.generator = new_generator(work.request.params, self._decoder.device)
        running = [self._work[other].context for other in self._schedule.running[:row]]
        logits, work.cached = self._decoder.begin(row, work.request.input_ids, running)
        self._append(work, logits)
        self._settle(work)

    def _append(self, work: _Work, logits: torch.Tensor) -> None:
        assert work.generator is not None
        token, logprob = sample(logits, work.request.params, work.generator)
        work.ids.append(token)
        work.logprobs.append(logprob)

    def _settle(self, work: _Work) -> None:
        """Answers a request that is finished and frees its row."""
        params, now = work.request.params, self._clock.now()
        if work.ids[-1] in params.stop_token_ids:
            finish = FinishReason.STOP
        elif len(work.ids) >= params.max_new_tokens:
            finish = FinishReason.LENGTH
        elif work.request.time_limit_s is not None and now - work.started >= work.request.time_limit_s:
            finish = FinishReason.ABORT
        else:
            return
        self._finish(work, finish, now)

    def _finish(self, work: _Work, finish: FinishReason, now: float) -> None:
        self._free(work)
        started = work.started if work.ids else now
        result = GenerationResult(
            ids=tuple(work.ids),
            logprobs=tuple(work.logprobs),
            finish=finish,
            versions=(VersionSpan(self._version, 0, len(work.ids)),) if work.ids else (),
            queue_s=started - work.submitted,
            run_s=now - started,
            cached_tokens=work.cached,
        )
        _answer(work.answer, result)

    def _free(self, work: _Work) -> None:
        """Takes a request out of queue or batch; the last row moves into its place."""
        name = work.request.request_id
        running = self._schedule.running
        if name in running:
            self._decoder.end(running.index(name), work.context)
        moved = self._schedule.remove(name)
        if moved is not None and moved.source != moved.target:
            last = self._work[running[moved.source]]
            self._decoder.move(moved.source, moved.target, len(last.context))
        del self._work[name]

    def _fail_all(self, reason: str) -> None:
        """Answers everything that is left with an error. Touches no tensor: the model may be what broke."""
        with self._wake:
            waiting = list(self._inbox)
            self._inbox.clear()
        failed = list(self._work.values())
        for name in list(self._work):
            self._schedule.remove(name)
        self._work.clear()
        for item in (*failed, *waiting):
            _refuse(item, reason)


def _refuse(item: _Work | _Interrupt | _Load | str, reason: str) -> None:
    if isinstance(item, (_Work, _Load)):
        _answer(item.answer, EngineUnavailable(reason))


def _answer(future: Future[Any], outcome: object) -> None:
    with contextlib.suppress(InvalidStateError):  # whoever asked has cancelled it
        if isinstance(outcome, EngineUnavailable):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
