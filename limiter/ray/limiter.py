"""The limiter of a Ray cluster as its users see it: made by whoever comes first, found by everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import fields, replace
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError

from fairbox.errors import ConfigError
from limiter.client import ExecutorSession, LimiterClient, LimiterUnavailable
from limiter.core import BucketLimits, LimiterStatistics
from limiter.ray.actor import LimiterActor
from limiter.ray.settings import DEFAULT_NAME, NAMESPACE, RaySettings, bucket_limits
from limiter.ray.transport import RayTransport

__all__ = ["LimiterMismatch", "RayLimiter"]

_ANSWER_WITHIN_S = 60.0
"""For the actor's first answer: Ray has to start a process, or to start the actor again on another machine."""


class LimiterMismatch(ConfigError):  # noqa: N818 - a fact about the cluster
    """The limiter exists with other settings than were asked for; the text names both. Nothing was changed."""


class RayLimiter:
    """`async with RayLimiter({"code": 10}) as limiter, limiter.client() as client: ...`

    The first one makes the actor: detached, so that it outlives whoever made it, and started again by Ray when its
    process or its machine is lost. Everybody else finds it by its name. Leaving the block leaves the actor running;
    `destroy()` ends it. Call `ray.init()` first.
    """

    def __init__(
        self,
        buckets: Mapping[str, int | BucketLimits] | None = None,
        *,
        name: str = DEFAULT_NAME,
        namespace: str = NAMESPACE,
        settings: RaySettings | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        """`buckets` maps names to limits, a number is `max_in_flight`; `settings` says everything instead. With
        neither, the actor must exist. `resources` is what Ray places the actor by, e.g. on a machine that is not
        preempted; the actor itself takes no CPUs."""
        if buckets is not None and settings is not None:
            raise ConfigError("buckets is given beside settings, must be one or the other")
        if buckets is not None:
            settings = RaySettings(bucket_limits(buckets))
        self._settings = settings
        self._name = name
        self._namespace = namespace
        self._resources = dict(resources or {})
        self._actor: Any = None

    async def __aenter__(self) -> RayLimiter:
        """Raises LimiterMismatch when the actor exists with other settings, LimiterUnavailable when there is none and
        none is to be made, or when it does not answer."""
        if not ray.is_initialized():
            raise ConfigError("this process is not connected to a Ray cluster: call ray.init() first")
        self._actor = await asyncio.to_thread(self._attach)
        found: RaySettings = await self._ask(self._actor.settings.remote())
        wanted = self._settings
        if wanted is not None and _unversioned(found) != _unversioned(wanted):
            raise LimiterMismatch(
                f"limiter {self._namespace}/{self._name} runs with {_difference(found, wanted)} was asked for; "
                "change it with configure(), or attach to it by RayLimiter() without settings"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._actor = None

    def transport(self) -> RayTransport:
        """What sessions of this limiter travel over."""
        return RayTransport(self._name, namespace=self._namespace)

    def client(self, *, name: str = "") -> LimiterClient:
        """A client, as over gRPC."""
        transport = self.transport()
        return LimiterClient(transport.target, name=name, transport=transport)

    def executor(self, *, executor_id: str = "") -> ExecutorSession:
        """An executor's session, as over gRPC."""
        transport = self.transport()
        return ExecutorSession(transport.target, executor_id=executor_id, transport=transport)

    async def statistics(self) -> LimiterStatistics:
        """The state of every bucket now. LimiterUnavailable when the actor does not answer."""
        found: LimiterStatistics = await self._ask(self._actor.statistics.remote())
        return found

    async def configure(self, limits: BucketLimits) -> BucketLimits:
        """Changes a bucket for everybody, over restarts too; makes it when `limits.version` is 0. Returns it with its
        new version. LimiterMismatch when `limits.version` is not the one in force."""
        version: int = await self._ask(self._actor.configure.remote(limits))
        if not version:
            raise LimiterMismatch(f"bucket {limits.name} has another version than {limits.version}; read it again")
        return replace(limits, version=version)

    async def destroy(self) -> None:
        """Ends the actor for good, and with it the wait of every client. Executors must have stopped their work."""
        await asyncio.to_thread(ray.kill, self._actor, no_restart=True)

    def _attach(self) -> Any:
        settings = self._settings
        if settings is None:
            try:
                return ray.get_actor(self._name, namespace=self._namespace)
            except ValueError:
                raise LimiterUnavailable(
                    f"there is no limiter {self._namespace}/{self._name}; make it with RayLimiter({{'code': 10}})"
                ) from None
        options = {
            "name": self._name,
            "namespace": self._namespace,
            "get_if_exists": True,
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "max_concurrency": settings.max_concurrency,
            "num_cpus": 0,
            "resources": self._resources,
        }
        return ray.remote(LimiterActor).options(**options).remote(settings, self._namespace, self._name)

    async def _ask(self, reference: Any) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                return await reference
        except (RayError, TimeoutError) as error:
            why = str(error).partition("\n")[0] or f"no answer within {_ANSWER_WITHIN_S:.0f} s"
            raise LimiterUnavailable(f"limiter {self._namespace}/{self._name}: {why}") from None


def _unversioned(settings: RaySettings) -> RaySettings:
    ordered = sorted(settings.buckets, key=lambda bucket: bucket.name)
    return replace(settings, buckets=tuple(replace(bucket, version=1) for bucket in ordered))


def _difference(found: RaySettings, wanted: RaySettings) -> str:
    """The first difference, as `X, where Y`."""
    old, new = ({bucket.name: bucket for bucket in _unversioned(each).buckets} for each in (found, wanted))
    if old.keys() != new.keys():
        return f"buckets {', '.join(old)}, where {', '.join(new)}"
    pairs: list[tuple[Any, Any]] = [*zip(old.values(), new.values(), strict=True), (found, wanted)]
    for pair in pairs:
        for each in fields(pair[0]):
            values = [getattr(settings, each.name) for settings in pair]
            if each.name != "buckets" and values[0] != values[1]:
                owner = f"{pair[0].name}." if isinstance(pair[0], BucketLimits) else ""
                return f"{owner}{each.name} {values[0]}, where {values[1]}"
    raise AssertionError("the settings do not differ")
