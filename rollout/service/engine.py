"""The engine as trainers move it: other weights, and pauses.

Invariants: one change at a time; a pause ends when its time is over, whatever became of who asked for it, and when the
block is left; a process that was started again has the weights that its engine was given last, if they are there still.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from pathlib import Path
from typing import Self

from fairbox.errors import FieldErrors
from rollout.cleanup import to_its_end
from rollout.engines.base import EngineUnavailable
from rollout.engines.weights import DiskWeights, WeightedEngine
from rollout.service.requests import MAX_STALENESS
from rollout.service.store import PushedWeights, TrajectoryStore

_AGAIN_S = 1.0
"""Between attempts to let an engine go on that does not answer."""
_LOG = logging.getLogger("fairbox.rollout")


class EngineControl:
    """`async with EngineControl(engine, store) as control`. An engine that an earlier process left paused goes on."""

    def __init__(self, engine: WeightedEngine, store: TrajectoryStore) -> None:
        self._engine = engine
        self._store = store
        self._changing = asyncio.Lock()
        self._before: deque[str] = deque(maxlen=MAX_STALENESS)
        """Versions that the engine had, the oldest first, and last that of now."""
        self._until: float | None = None
        """End of the pause, in the loop's time."""
        self._begun = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        with contextlib.suppress(EngineUnavailable):  # one that does not answer yet has not begun
            await self._engine.resume()
        await self._restore()
        self._keeper = asyncio.create_task(self._keep(), name="pauses")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        if self._until is not None:
            await to_its_end(self._end())

    @property
    def paused_s(self) -> float:
        """Seconds until the pause is over; 0: there is none."""
        return 0.0 if self._until is None else max(self._until - asyncio.get_running_loop().time(), 0.0)

    def age(self, version: str) -> int | None:
        """Updates since the engine had these weights; None: it is not known to have had them."""
        if not self._before:
            return 0  # it was never given any
        return next((age for age, each in enumerate(reversed(self._before)) if each == version), None)

    async def update(self, folder: Path, version: str) -> None:
        """Other weights; a paused engine stays paused. Raises FieldErrors, EngineUnavailable and JournalError."""
        async with self._changing:
            first = self._engine.weight_version
            await self._engine.update_weights(DiskWeights(folder), version=version)
            if not self._before:
                self._before.append(first)
            if self._before[-1] != version:
                self._before.append(version)
            await self._store.keep_weights(PushedWeights(str(folder), version, tuple(self._before)[:-1]))

    async def pause(self, seconds: float) -> None:
        """Returns when no turn is sampled. A pause that there is ends so many seconds from now. Raises
        EngineUnavailable; the engine then goes on."""
        async with self._changing:
            if self._until is None:
                await self._engine.pause()
            self._until = asyncio.get_running_loop().time() + seconds
            self._begun.set()

    async def resume(self) -> None:
        """Lets it go on. Idempotent. Raises EngineUnavailable."""
        async with self._changing:
            await self._engine.resume()
            self._until = None

    async def _restore(self) -> None:
        """Gives the engine what it was given last. Where that can't be, each id says which weights sampled it."""
        kept = await self._store.weights()
        if kept is not None:
            self._before.extend((*kept.before, kept.version))
        if kept is None or kept.version == self._engine.weight_version:
            return
        try:
            await self._engine.update_weights(DiskWeights(Path(kept.folder)), version=kept.version)
        except (FieldErrors, EngineUnavailable) as error:
            has = self._engine.weight_version
            self._before.append(has)
            _LOG.warning("weights %r can't be restored, the engine has %r: %s", kept.version, has, error)

    async def _end(self) -> None:
        try:
            await self.resume()
        except EngineUnavailable as error:
            _LOG.warning("the engine stays paused: %s", error)

    async def _keep(self) -> None:
        """Ends pauses whose time is over."""
        while True:
            try:
                async with asyncio.timeout(None if self._until is None else self.paused_s):
                    await self._begun.wait()
                self._begun.clear()
            except TimeoutError:
                await self._end_if_over()

    async def _end_if_over(self) -> None:
        async with self._changing:
            if self._until is None or self.paused_s:
                return  # it was ended or begun anew meanwhile
            try:
                await self._engine.resume()
            except Exception as error:  # the boundary of this task: nobody else would end the pause
                _LOG.warning("a paused engine can't go on yet: %s", error)
                self._until = asyncio.get_running_loop().time() + _AGAIN_S
            else:
                _LOG.warning("the time of a pause was over, the engine goes on")
                self._until = None
