"""Samples one part of a turn at an sglang server: sends it, watches its deadlines, ends it there when it ends here.

Invariants: the time limit counts from when the server began, not from when it was asked; a part that is cut off is read
to its end, so that what was sampled is kept; an abort that this process owes a server is sent, even while the caller is
cancelled, and has ended before `close` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from fairbox.clock import MonotonicClock
from rollout.engines.base import EngineUnavailable, FinishReason, GenerationRequest, GenerationResult
from rollout.engines.http import EventStream
from rollout.engines.sglang.server import SglangServer
from rollout.engines.sglang.wire import AnswerReader, generate_body, max_answer_bytes

_ABORT_S = 5.0
"""For the call that aborts."""
_CUT_S = 30.0
"""From an abort to the answer that holds what there is: one step of the server, however long its prefill."""
_TURN_TIMEOUT_S = 3600.0
"""From a turn's first id to its last where the request has no `time_limit_s`."""
_CUT_EVERY_S = 0.5
"""An abort that overtakes its own request finds nothing to end, so it is sent until the answer comes."""


class PartRunner:
    """`run` samples a part; `server` answers /generate, `workers` the control calls."""

    def __init__(
        self,
        server: SglangServer,
        workers: Sequence[SglangServer],
        *,
        vocab_size: int,
        incremental: bool,
    ) -> None:
        self._server = server
        self._workers = workers
        self._vocab_size = vocab_size
        self._incremental = incremental
        self._clock = MonotonicClock()
        self._running: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._owed: set[asyncio.Task[None]] = set()
        self.started = 0
        """Parts whose first id has come."""

    async def run(self, request: GenerationRequest) -> tuple[GenerationResult, bool]:
        """The part, and whether something else than its time limit cut it off. Raises EngineUnavailable when the server
        fails or does not begin within `queue_timeout_s`."""
        rid = uuid.uuid4().hex
        self._running.add(rid)
        self._idle.clear()
        part = _Part(self, request, rid)
        try:
            return await part.run()
        except BaseException:
            self._own(self._abort(rid))
            raise
        finally:
            self._running.discard(rid)
            if not self._running:
                self._idle.set()
            self.started -= part.counted

    async def close(self) -> None:
        """Aborts what runs and waits, for some seconds at most, until nothing is owed."""
        for rid in self._running:
            self._own(self._abort(rid))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), _ABORT_S)
        if self._owed:
            await asyncio.wait(self._owed, timeout=_ABORT_S)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._owed.add(task)
        task.add_done_callback(self._owed.discard)

    async def _abort(self, rid: str) -> None:
        for server in self._workers:
            with contextlib.suppress(EngineUnavailable):  # a server that is gone runs nothing
                await server.abort(rid, timeout_s=_ABORT_S)


class _Part:
    """One part while it runs."""

    def __init__(self, runner: PartRunner, request: GenerationRequest, rid: str) -> None:
        self._runner = runner
        self._request = request
        self._rid = rid
        self._reader = AnswerReader(request.params, vocab_size=runner._vocab_size, incremental=runner._incremental)
        self._began = runner._clock.now()
        self._first: float | None = None
        """When its first id came."""
        self.counted = 0

    async def run(self) -> tuple[GenerationResult, bool]:
        runner, request = self._runner, self._request
        async with runner._server.stream(
            "/generate",
            generate_body(request, self._rid),
            max_bytes=max_answer_bytes(request.params),
            timeout_s=request.queue_timeout_s,
        ) as stream:
            late = False
            try:
                async with asyncio.timeout(max(0.0, request.queue_timeout_s - self._elapsed())) as deadline:
                    answer = await self._read(stream, deadline)
            except TimeoutError:
                late = True
                answer = await self._cut(stream)
        return self._timed(answer, late)

    async def _read(self, stream: EventStream, deadline: asyncio.Timeout | None) -> GenerationResult:
        answer = None
        while answer is None:
            answer = self._reader.add(await stream.next())
            if self._first is None and self._reader.started:
                self._first = self._runner._clock.now()
                self._runner.started += 1
                self.counted = 1
                if deadline is not None:
                    deadline.reschedule(asyncio.get_running_loop().time() + self._left_s())
        return answer

    def _left_s(self) -> float:
        limit = self._request.time_limit_s
        if limit is None:
            return _TURN_TIMEOUT_S
        return max(0.0, limit - (self._elapsed() - self._queued_s()))

    async def _cut(self, stream: EventStream) -> GenerationResult:
        """Aborts the request and reads what there is."""
        began = self._elapsed()
        while self._elapsed() - began < _CUT_S:
            await self._runner._abort(self._rid)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CUT_EVERY_S):
                    return await self._read(stream, None)
        raise EngineUnavailable(f"{self._runner._server.url}: a turn was not ended within {_CUT_S:g} s")

    def _timed(self, answer: GenerationResult, late: bool) -> tuple[GenerationResult, bool]:
        """Raises EngineUnavailable for a part that was cut off by a deadline that is not its own limit."""
        aborted = answer.finish is FinishReason.ABORT
        if aborted and late:
            if self._first is None:
                raise EngineUnavailable(f"waited {self._request.queue_timeout_s:.3g} s in the engine's queue")
            if self._request.time_limit_s is None:
                raise EngineUnavailable(f"a turn did not end within {_TURN_TIMEOUT_S:g} s")
        queued, elapsed = (self._queued_s(), self._elapsed()) if answer.ids else (self._elapsed(), self._elapsed())
        return replace(answer, queue_s=queued, run_s=max(0.0, elapsed - queued)), aborted and not late

    def _queued_s(self) -> float:
        """As the server says; where it does not, until its first id came."""
        if self._reader.queue_s is not None:
            return min(self._reader.queue_s, self._elapsed())
        return self._elapsed() if self._first is None else self._first - self._began

    def _elapsed(self) -> float:
        return self._runner._clock.now() - self._began
