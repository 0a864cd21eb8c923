"""The actor: one event loop that runs a core, its hub and the streams of its clients.

Invariants: what it decides, it decides in its loop, without threads; it serves nobody before it leads, and ends itself
when it may have stopped leading, so that Ray starts the next one; a change of its buckets is stored before it counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from dataclasses import replace

import ray

from fairbox.clock import MonotonicClock
from limiter.core import BucketLimits, LimiterStatistics
from limiter.core.effects import Configured
from limiter.core.events import Configure
from limiter.leadership import LeadershipLost
from limiter.ray.leadership import ClusterLeadership
from limiter.ray.settings import RaySettings
from limiter.ray.store import ClusterStore
from limiter.ray.streams import Streams
from limiter.server.hub import Hub
from limiter.server.reign import Reign

__all__ = ["LimiterActor"]

_LOG = logging.getLogger("limiter.ray")
_STARTED_WITHIN_S = 30.0
"""A question waits for the actor to lead for as long; a stream is refused at once instead, and asked for again."""


class LimiterActor:
    """What Ray runs. Every method is a coroutine, so that Ray runs them all in one loop."""

    def __init__(self, settings: RaySettings, namespace: str, name: str) -> None:
        self._settings = settings
        self._key = ""
        self._store = ClusterStore(namespace, name)
        self._clock = MonotonicClock()
        self._streams: Streams | None = None
        self._configuring = asyncio.Lock()
        self._leading = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._lead())

    async def open(self, stream_id: str) -> str:
        """Opens a stream; why not, or ""."""
        return "it does not lead yet" if self._streams is None else self._streams.open(stream_id)

    async def send(self, stream_id: str, number: int, data: bytes) -> str:
        """Handles one frame; why the stream has ended, or ""."""
        return "it does not lead yet" if self._streams is None else self._streams.send(stream_id, number, data)

    async def receive(self, stream_id: str) -> bytes | None:
        """The next frame; see `Streams.receive`."""
        return None if self._streams is None else await self._streams.receive(stream_id)

    async def finish(self, stream_id: str) -> None:
        """The client sends nothing more."""
        if self._streams is not None:
            self._streams.finish(stream_id)

    async def close(self, stream_id: str) -> None:
        """Ends a stream."""
        if self._streams is not None:
            self._streams.close(stream_id)

    async def settings(self) -> RaySettings:
        """What it runs with now, changes of its buckets included."""
        await self._until_leading()
        return self._settings

    async def statistics(self) -> LimiterStatistics:
        """The state of every bucket now."""
        await self._until_leading()
        return self._hub.core.statistics(self._clock.now())

    async def configure(self, limits: BucketLimits) -> int:
        """Changes a bucket, or makes it with version 0; the new version, or 0 when `limits.version` is not the one in
        force."""
        await self._until_leading()
        async with self._configuring:
            buckets = {bucket.name: bucket for bucket in self._settings.buckets}
            old = buckets.get(limits.name)
            if limits.version != (old.version if old is not None else 0):
                return 0
            # Stored first: a restart in between must not bring back a limit that was lowered.
            buckets[limits.name] = replace(limits, version=limits.version + 1)
            settings = replace(self._settings, buckets=tuple(buckets.values()))
            await self._store.put(self._key, pickle.dumps(settings))
            self._settings = settings
            effects = self._hub.apply(Configure(limits, limits.version))
            return next(effect.version for effect in effects if isinstance(effect, Configured))

    async def _until_leading(self) -> None:
        async with asyncio.timeout(_STARTED_WITHIN_S):
            await self._leading.wait()

    def _begin(self, hub: Hub) -> None:
        settings = self._settings
        self._hub = hub
        self._streams = Streams(hub, poll=settings.poll, silence=settings.silence, max_streams=settings.max_streams)
        self._leading.set()

    async def _lead(self) -> None:
        """Leads for as long as it can, then ends the process."""
        try:
            context = ray.get_runtime_context()
            # Under the id of the actor, which is the same after a restart, and another one for a limiter made anew.
            self._key = f"settings.{context.get_actor_id()}"
            stored = await self._store.get(self._key)
            if stored is not None:
                self._settings = pickle.loads(stored)  # noqa: S301 - written by this actor into the cluster's own store
            settings = self._settings
            leadership = ClusterLeadership(self._store, self._clock, node=context.get_node_id(), lease=settings.lease)
            await Reign(
                leadership, self._clock, buckets=settings.buckets, timing=settings.timing, on_hub=self._begin
            ).run()
        except LeadershipLost as error:
            _LOG.warning("stopped leading: %s", error)
        except Exception:
            _LOG.exception("failed")
        finally:
            # Not a clean exit, after which Ray would not start the actor again.
            os._exit(1)
