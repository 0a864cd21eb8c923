"""What plays a run's trajectories: a loop in this process, or loops in the workers of a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairbox.errors import ConfigError
from rollout.build import open_loop
from rollout.config import RolloutConfig
from rollout.engines.base import EngineStatistics
from rollout.loop.agent_loop import AgentLoop
from rollout.loop.runner import Loop
from rollout.ray.cluster import ray_cluster
from rollout.tokens.chat import ChatTemplate
from rollout.tokens.drift import DriftCounter
from rollout.tools.registry import ToolSpec
from rollout.tools.statistics import ToolStatistics

__all__ = ["Player", "open_player"]


@dataclass(frozen=True, slots=True)
class Player:
    """A loop, and what a run shows of it. With workers the figures of engines and tools stay with them."""

    loop: Loop
    chat: ChatTemplate
    schemas: list[dict[str, Any]]
    """Of the tools, as the prompt has them."""
    model_name: str
    max_model_tokens: int
    engine: Callable[[], EngineStatistics] = EngineStatistics
    tools: Callable[[], Mapping[str, ToolStatistics]] = dict
    drift: DriftCounter | None = None
    workers: Callable[[], str] = str
    """What is to be said of the workers; empty: there are none."""


@contextlib.asynccontextmanager
async def open_player(
    config: RolloutConfig, model_dir: Path, *, executor: str, limiter: str, specs: Sequence[ToolSpec] | None = None
) -> AsyncIterator[Player]:
    """As `config.ray` says. The services are `host:port`; `specs` None is `tool_specs(config)`."""
    factory = partial(open_loop, config, model_dir, executor=executor, limiter=limiter, specs=specs)
    if config.ray:
        async with _over_ray(config, model_dir, factory) as player:
            yield player
        return
    async with factory() as loop:
        yield Player(
            loop=loop,
            chat=loop.chat,
            schemas=loop.tools.schemas,
            model_name=loop.engine.model_name,
            max_model_tokens=loop.engine.max_model_tokens,
            engine=loop.engine.statistics,
            tools=loop.tools.statistics,
            drift=loop.drift,
        )


@contextlib.asynccontextmanager
async def _over_ray(
    config: RolloutConfig, model_dir: Path, factory: Callable[[], AbstractAsyncContextManager[AgentLoop]]
) -> AsyncIterator[Player]:
    with ray_cluster(config.ray_address, what="--ray"):
        import ray

        from rollout.ray import RayLoops

        nodes = sum(node["Alive"] for node in ray.nodes())
        if config.up and nodes > 1:
            raise ConfigError(f"up is set, but the {nodes} machines of the cluster can't reach services on this one")
        chat = config.chat.load(model_dir)
        async with RayLoops(factory, config.spread, chat=chat, sampling=config.sampling.params()) as loops:
            facts = await loops.facts()
            yield Player(
                loop=loops,
                chat=chat,
                schemas=facts.schemas,
                model_name=facts.model_name,
                max_model_tokens=facts.max_model_tokens,
                workers=lambda: str(loops.statistics()),
            )
