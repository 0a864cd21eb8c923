"""Several engines with the same model as one: turns are placed, watched, and placed again when a replica dies.

Invariants: a turn is answered once, by one replica, or fails with EngineUnavailable within its deadline; only replicas
with the wanted weights get turns, so one that was restarted is given the last checkpoint first; what is due is decided
by `Balancer`; the probing task is owned, and has ended before leaving returns.

Sampling a turn again is safe, because nothing of the failed attempt was handed over: a turn has no effect outside of
its engine until its result is returned. The time it cost is reported as waiting, which no trajectory is charged for.

`ReplicaWeights`: one change at a time; a replica gets turns only with the wanted version, because `bring` is part of
its probe; the wanted version changes when at least one replica has it. Loading again is safe: it replaces the same
weights by the same, with no turn running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fairbox.clock import MonotonicClock
from fairbox.errors import FieldError, FieldErrors
from rollout.cleanup import cancelled_here
from rollout.engines.base import (
    EngineStatistics,
    EngineUnavailable,
    GenerationRequest,
    GenerationResult,
    check_request,
)
from rollout.engines.replicas.placement import PROBE_EVERY_S, Balancer, ReplicaView
from rollout.engines.weights import DiskWeights, Interrupt, Replica, WeightSource

Failed = Callable[[str, str], None]
"""Callback with the name of a replica that is left out until it was probed, and the reason."""


class ReplicaWeights:
    """The wanted weights, and whether replicas are paused. `answering` are the replicas that answer, by name."""

    def __init__(self, answering: Callable[[], Mapping[str, Replica]], failed: Failed) -> None:
        self._answering = answering
        self._failed = failed
        self.version = ""
        """Wanted; that of the first replica that answered until an update."""
        self._source: WeightSource | None = None
        self._paused = False
        self._mode: Interrupt | None = None
        self._lock = asyncio.Lock()

    async def bring(self, engine: Replica, *, timeout_s: float) -> None:
        """Returns when `engine` answers and has the wanted weights. Raises EngineUnavailable."""
        async with self._lock:
            has = await engine.check_health(timeout_s=timeout_s)
            if not self.version:
                self.version = has
            elif has != self.version:
                if not isinstance(self._source, DiskWeights):
                    raise EngineUnavailable(f"has the weights {has}, not {self.version}, and those are in no folder")
                await engine.update_weights(self._source, version=self.version)
            if self._paused:
                await engine.pause(self._mode)

    async def update(self, source: WeightSource, *, version: str, timeout_s: float) -> None:
        """Raises the first error when every replica fails; otherwise those that did are `failed`."""
        engines = self._answering()
        async with self._lock:
            errors = await _each(
                engines, lambda engine: engine.update_weights(source, version=version, timeout_s=timeout_s)
            )
            if len(errors) == len(engines):
                raise next(iter(errors.values()))
            self.version, self._source = version, source
            for name, error in errors.items():
                self._failed(name, str(error))

    async def pause(self, mode: Interrupt | None, *, timeout_s: float) -> None:
        """Raises the error of a replica that answers and could not be paused, after the others were resumed."""
        engines = self._answering()
        async with self._lock:
            errors = await _each(engines, lambda engine: engine.pause(mode, timeout_s=timeout_s))
            alive = [name for name in errors if await _answers(engines[name])]
            if alive or len(errors) == len(engines):
                with contextlib.suppress(EngineUnavailable):
                    await asyncio.shield(self._resume(engines))
                raise errors[alive[0]] if alive else next(iter(errors.values()))
            self._paused, self._mode = True, mode
            for name, error in errors.items():
                self._failed(name, str(error))

    async def resume(self) -> None:
        """A replica that can't be resumed is `failed`."""
        engines = self._answering()
        async with self._lock:
            await self._resume(engines)

    async def _resume(self, engines: Mapping[str, Replica]) -> None:
        self._paused = False
        for name, error in (await _each(engines, lambda engine: engine.resume())).items():
            self._failed(name, str(error))


async def _each(
    engines: Mapping[str, Replica], call: Callable[[Replica], Awaitable[None]]
) -> dict[str, EngineUnavailable]:
    """Calls every engine at once: which failed. Other errors than EngineUnavailable are raised."""
    if not engines:
        raise EngineUnavailable("no replica answers")
    answers = await asyncio.gather(*(call(engine) for engine in engines.values()), return_exceptions=True)
    errors = {}
    for name, answer in zip(engines, answers, strict=True):
        if isinstance(answer, EngineUnavailable):
            errors[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
    return errors


def _reason(view: ReplicaView) -> str:
    """Why it does not answer, with its name once: an engine's errors begin with its address, which is its name."""
    return view.last_error if view.last_error.startswith(view.name) else f"{view.name}: {view.last_error}"


async def _answers(engine: Replica) -> bool:
    try:
        await engine.check_health()
    except EngineUnavailable:
        return False
    return True


_LOG = logging.getLogger("fairbox.rollout")
_MAX_ATTEMPTS = 3
"""Replicas that a turn may be lost on until it fails: one that kills its engine must not kill them all."""
_PROBE_S = 5.0
"""Longest wait for the answer to a probe."""


@dataclass(eq=False, slots=True)
class _Member:
    """A replica and what runs there."""

    engine: Replica
    entered: bool = False
    calls: set[asyncio.Task[GenerationResult]] = field(default_factory=set)


class ReplicatedEngine:
    """`async with ReplicatedEngine({"a": SglangEngine(...), "b": SglangEngine(...)}) as engine`.

    At least one replica must answer on entering; the others join when they do.
    """

    def __init__(self, replicas: Mapping[str, Replica]) -> None:
        if not replicas:
            raise FieldErrors([FieldError("replicas", "is empty, must hold at least one engine")])
        self._clock = MonotonicClock()
        self._members = {name: _Member(engine) for name, engine in replicas.items()}
        self._balancer = Balancer(self._members, now=self._clock.now())
        self._weights = ReplicaWeights(self._answering, self._failed)
        self._changed = asyncio.Event()
        """Set, and made anew, whenever a replica may have become ready."""
        self._wake = asyncio.Event()
        """Set when a probe may be due before the prober thinks."""
        self._prober: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._waiting = 0
        self._bounds = (0, 0)

    @property
    def model_name(self) -> str:
        return next(member.engine.model_name for member in self._members.values() if member.entered)

    @property
    def vocab_size(self) -> int:
        return self._bounds[0]

    @property
    def max_model_tokens(self) -> int:
        """The shortest of those that answered on entering; a replica with less does not join later."""
        return self._bounds[1]

    @property
    def weight_version(self) -> str:
        return self._weights.version

    async def __aenter__(self) -> Self:
        """Once only. Raises EngineUnavailable when no replica answers."""
        try:
            await asyncio.gather(*(self._probe(name) for name in self._balancer.due(self._clock.now())))
        except BaseException:
            await asyncio.shield(self._stack.aclose())
            raise
        entered = [member.engine for member in self._members.values() if member.entered]
        if not entered:
            reasons = [_reason(view) for view in self._balancer.views()]
            await self._stack.aclose()
            raise EngineUnavailable(reasons[0] if len(reasons) == 1 else f"no replica answers: {'; '.join(reasons)}")
        self._bounds = (
            min(engine.vocab_size for engine in entered),
            min(engine.max_model_tokens for engine in entered),
        )
        self._prober = asyncio.create_task(self._probe_all(), name="replica-prober")
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        if self._prober is None:
            raise EngineUnavailable("the engine is closed")
        check_request(request, vocab_size=self.vocab_size, max_model_tokens=self.max_model_tokens)
        began = self._clock.now()
        ends = began + request.queue_timeout_s + (request.time_limit_s or 0.0)
        lost: set[str] = set()
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            # Once nobody has answered for as long as a turn waits, others don't wait as long again.
            patience = max(0.0, request.queue_timeout_s - self._balancer.away_s(self._clock.now()))
            name = await self._place(request.trajectory_id, lost, min(patience, ends - self._clock.now()))
            spent = self._clock.now() - began
            try:
                left = max(1e-3, min(request.queue_timeout_s, ends - self._clock.now()))
                result = await self._sample(name, replace(request, queue_timeout_s=left))
                return replace(result, queue_s=result.queue_s + spent)
            except EngineUnavailable as error:
                lost.add(name)
                if self._prober is None or attempt == _MAX_ATTEMPTS or self._clock.now() >= ends:
                    raise
                _LOG.warning("turn %s is sampled again: replica %s: %s", request.request_id, name, error)
        raise AssertionError("the last attempt returns or raises")

    def replicas(self) -> tuple[ReplicaView, ...]:
        """Every replica as it is."""
        return self._balancer.views()

    def statistics(self) -> EngineStatistics:
        """Sums over the replicas; `busy_s` is that of the busiest."""
        each = [member.engine.statistics() for member in self._members.values()]
        names = ("running", "finished", "aborted", "prompt_tokens", "cached_tokens", "sampled_tokens")
        sums: dict[str, Any] = {name: sum(getattr(figures, name) for figures in each) for name in names}
        return EngineStatistics(
            **sums,
            queued=self._waiting + sum(figures.queued for figures in each),
            busy_s=max(figures.busy_s for figures in each),
        )

    async def pause(self, mode: Interrupt | None = None, *, timeout_s: float = 600.0) -> None:
        """As `WeightedEngine`, for every replica that answers. One that fails is down until it is probed."""
        await self._with_somebody(lambda left_s: self._weights.pause(mode, timeout_s=left_s), timeout_s)

    async def resume(self) -> None:
        await self._weights.resume()

    async def update_weights(self, source: WeightSource, *, version: str, timeout_s: float = 600.0) -> None:
        """As `WeightedEngine`, all replicas at once. Those that fail are down until they have the weights; when all
        fail the wanted version stays what it was, and the first error is raised."""
        await self._with_somebody(
            lambda left_s: self._weights.update(source, version=version, timeout_s=left_s), timeout_s
        )

    async def _with_somebody(self, work: Callable[[float], Awaitable[None]], timeout_s: float) -> None:
        """Does what needs a replica that answers, and waits for one while there is none. Again is safe: paused twice is
        paused, and the same weights replace the same."""
        ends = self._clock.now() + timeout_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, ends - self._clock.now())):
                    while self._prober is not None and not self._answering():
                        await self._changed.wait()
            try:
                return await work(max(1e-3, ends - self._clock.now()))
            except EngineUnavailable:
                if self._prober is None or self._clock.now() >= ends or await self._somebody_answers():
                    raise

    async def _somebody_answers(self) -> bool:
        """Asks those that are taken to; those that don't are down."""
        engines = self._answering()
        answers = await asyncio.gather(*map(_answers, engines.values()))
        for name, answered in zip(engines, answers, strict=True):
            if not answered:
                self._failed(name, "it does not answer")
        return any(answers)

    def _answering(self) -> dict[str, Replica]:
        up = {view.name for view in self._balancer.views() if view.up}
        return {name: member.engine for name, member in self._members.items() if member.entered and name in up}

    def _failed(self, name: str, error: str) -> None:
        self._balancer.failed(name, error, now=self._clock.now())
        self._wake.set()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _place(self, trajectory_id: str, lost: set[str], timeout_s: float) -> str:
        """Raises EngineUnavailable when no replica is ready in time."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self._prober is not None:
                    name = self._balancer.choose(trajectory_id, lost)
                    if name is not None:
                        return name
                    await self._changed.wait()
        except TimeoutError:
            reasons = "; ".join(
                f"{view.name} is {'ready' if view.up else 'down'}: {view.last_error}" for view in self._balancer.views()
            )
            raise EngineUnavailable(f"no replica was ready in time: {reasons}") from None
        finally:
            self._waiting -= 1
        raise EngineUnavailable("the engine is closed")

    async def _sample(self, name: str, request: GenerationRequest) -> GenerationResult:
        member = self._members[name]
        call = asyncio.ensure_future(member.engine.generate(request))
        member.calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            if cancelled_here():
                raise
            raise EngineUnavailable(f"replica {name} does not answer any more") from None
        except EngineUnavailable as error:
            self._failed(name, str(error))
            raise
        finally:
            member.calls.discard(call)
            self._balancer.ended(name)

    async def _probe_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                for name in self._balancer.due(self._clock.now()):
                    group.create_task(self._probe(name))
                next_at = self._balancer.next_probe_at()
                pause = PROBE_EVERY_S if next_at is None else max(0.0, next_at - self._clock.now())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)

    async def _probe(self, name: str) -> None:
        """Enters a replica that was not entered yet, sees whether it answers, and gives it the wanted weights."""
        member = self._members[name]
        error: str | None = None
        try:
            await self._enter(member)
            await self._weights.bring(member.engine, timeout_s=_PROBE_S)
        except EngineUnavailable as failure:
            error = str(failure)
        except Exception as failure:  # the boundary of a replica: whatever is wrong with one must not end the others
            _LOG.exception("replica %s can't be probed", name)
            error = f"{type(failure).__name__}: {failure}"
        if self._balancer.probed(name, error, now=self._clock.now()):
            _LOG.warning("replica %s is given up with %d turns: %s", name, len(member.calls), error)
            for call in list(member.calls):
                call.cancel()
        self._notify()
        self._wake.set()

    async def _enter(self, member: _Member) -> None:
        engine = member.engine
        if not member.entered:
            await self._stack.enter_async_context(engine)
            member.entered = True
        if engine.vocab_size < self.vocab_size or engine.max_model_tokens < self.max_model_tokens:
            raise EngineUnavailable(
                f"takes {engine.max_model_tokens} tokens of {engine.vocab_size} ids, the others "
                f"{self.max_model_tokens} of {self.vocab_size}"
            )

    async def _close(self) -> None:
        prober, self._prober = self._prober, None
        if prober is not None:
            prober.cancel()
            await asyncio.gather(prober, return_exceptions=True)
        self._notify()
        await self._stack.aclose()
