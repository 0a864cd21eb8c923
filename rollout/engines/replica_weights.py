"""Keeps the weights of several engines the same, whichever of them come and go.

Invariants: one change at a time; a replica gets turns only with the wanted version, because `bring` is part of its
probe; the wanted version changes when at least one replica has it. Loading again is safe: it replaces the same weights
by the same, with no turn running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from rollout.engines.base import EngineUnavailable
from rollout.engines.weights import DiskWeights, Interrupt, Replica, WeightSource

__all__ = ["ReplicaWeights"]

Failed = Callable[[str, str], None]
"""Is told the name of a replica that is to be left out until it was probed, and why."""


class ReplicaWeights:
    """The wanted weights, and whether replicas are paused."""

    def __init__(self) -> None:
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

    async def update(
        self,
        engines: Mapping[str, Replica],
        failed: Failed,
        source: WeightSource,
        *,
        version: str,
        timeout_s: float,
    ) -> None:
        """Raises the first error when every replica fails; otherwise those that did are `failed`."""
        async with self._lock:
            errors = await _each(
                engines, lambda engine: engine.update_weights(source, version=version, timeout_s=timeout_s)
            )
            if len(errors) == len(engines):
                raise next(iter(errors.values()))
            self.version, self._source = version, source
            for name, error in errors.items():
                failed(name, str(error))

    async def pause(
        self, engines: Mapping[str, Replica], failed: Failed, mode: Interrupt | None, *, timeout_s: float
    ) -> None:
        """Raises the error of a replica that answers and could not be paused, after the others were resumed."""
        async with self._lock:
            errors = await _each(engines, lambda engine: engine.pause(mode, timeout_s=timeout_s))
            alive = [name for name in errors if await _answers(engines[name])]
            if alive or len(errors) == len(engines):
                with contextlib.suppress(EngineUnavailable):
                    await asyncio.shield(self._resume(engines, failed))
                raise errors[alive[0]] if alive else next(iter(errors.values()))
            self._paused, self._mode = True, mode
            for name, error in errors.items():
                failed(name, str(error))

    async def resume(self, engines: Mapping[str, Replica], failed: Failed) -> None:
        """A replica that can't be resumed is `failed`."""
        async with self._lock:
            await self._resume(engines, failed)

    async def _resume(self, engines: Mapping[str, Replica], failed: Failed) -> None:
        self._paused = False
        for name, error in (await _each(engines, lambda engine: engine.resume())).items():
            failed(name, str(error))


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


async def _answers(engine: Replica) -> bool:
    try:
        await engine.check_health()
    except EngineUnavailable:
        return False
    return True
