"""Changes buckets at the leader all the time, and puts everything back in the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from limiter.core import BucketLimits, BucketOrder
from limiter.core.events import Configure
from tests.limiter.sim.limiter_node import LimiterNode
from tests.limiter.sim.world import World

_EVERY_S = 2.0
"""Mean time between changes."""


class Operator:
    """`await run()`, then `restore()` when all is quiet."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("operator")

    async def run(self) -> None:
        """While clients are busy."""
        world, rng = self._world, self._rng
        while world.busy:
            await asyncio.sleep(rng.expovariate(1 / _EVERY_S))
            if world.busy:
                world.checker.count("bucket changed")
                self._apply(self._changed(rng.choice(world.scenario.buckets)))

    def restore(self) -> None:
        """Every bucket is as it was."""
        for bucket in self._world.scenario.buckets:
            self._apply(bucket)

    def _changed(self, bucket: BucketLimits) -> BucketLimits:
        rng = self._rng
        changed = replace(bucket, max_in_flight=rng.randint(1, 6), paused=rng.random() < 0.1)
        if bucket.rate_per_s:
            changed = replace(changed, rate_per_s=rng.choice([2.0, 4.0, 10.0]), burst=rng.choice([1, 4]))
        if bucket.order is BucketOrder.FAIR_BY_TENANT:
            changed = replace(changed, order=rng.choice(list(BucketOrder)))
        return changed

    def _apply(self, limits: BucketLimits) -> None:
        for node in self._world.nodes.values():
            if isinstance(node, LimiterNode) and node.runner is not None and node.leads:
                self._world.loop.hand_over(node.process, node.runner.apply, Configure(limits, None))
