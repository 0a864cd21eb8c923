"""sglang servers over a Ray cluster, as long as the driver lives.

Invariants: all GPUs of a replica are on one machine and set aside before it starts; a server ends with its actor, and
an actor with the driver, however they die. Needs the extra `ray`, and `ray.init()` by the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from fairbox.net.ports import free_port
from rollout.engines.base import EngineUnavailable
from rollout.engines.sglang.launch import (
    READY_WITHIN_S,
    KeptProcess,
    LaunchConfig,
    server_command,
    server_env,
    wait_ready,
)
from rollout.ray.cluster import ray_sentence

_CPUS = 4.0
"""Processors that Ray sets aside beside each GPU."""
_STOP_S = 40.0
"""The keeper needs 20 s at most."""


class _Server:
    """Ray actor with one replica, on the GPUs that Ray shows this process."""

    def __init__(self) -> None:
        self._process: KeptProcess | None = None

    async def start(self, config: LaunchConfig) -> str:
        """The URL of the server, which answers. Raises EngineUnavailable with the end of its log."""
        host = ray.util.get_node_ip_address()
        port, log = free_port(host), Path(tempfile.mkdtemp(prefix="fairbox-sglang-")) / "server.log"
        words, env = server_command(config, host=host, port=port), server_env(config.env)
        self._process = KeptProcess(words, env=env, log=log, restarts=config.restarts)
        await self._process.__aenter__()
        url = f"http://{host}:{port}"
        await wait_ready(url, self._process)
        return url

    async def stop(self) -> None:
        """Ends the server and waits for it."""
        if self._process is not None:
            await self._process.stop()


@contextlib.asynccontextmanager
async def ray_servers(config: LaunchConfig) -> AsyncIterator[dict[str, str]]:
    """The URL of each replica, by its name, once all of them answer. Raises EngineUnavailable when the cluster has no
    room in time, or a server does not start."""
    cpus = _CPUS * config.gpus if config.gpus else 1.0
    kind = ray.remote(_Server).options(num_cpus=cpus, num_gpus=config.gpus, scheduling_strategy="SPREAD")
    actors = [kind.remote() for _ in range(config.replicas)]
    try:
        urls = await _started(actors, config)
        yield {f"replica-{index}": url for index, url in enumerate(urls)}
    finally:
        await asyncio.shield(asyncio.gather(*(_end(actor) for actor in actors)))


async def _started(actors: list[Any], config: LaunchConfig) -> list[str]:
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            return list(await asyncio.gather(*(actor.start.remote(config) for actor in actors)))
    except TimeoutError:
        free = await asyncio.to_thread(ray.available_resources)
        wanted = f"wanted are {config.replicas} times {config.gpus} GPUs of one machine"
        raise EngineUnavailable(
            f"the servers were not ready within {READY_WITHIN_S:g} s; {wanted}, free are {free.get('GPU', 0):g}"
        ) from None
    except RayError as error:
        why = str(error.cause) if isinstance(error, RayTaskError) else f"Ray: {ray_sentence(error)}"
        raise EngineUnavailable(why) from None


async def _end(actor: Any) -> None:
    with contextlib.suppress(RayError, TimeoutError):  # its machine is gone, or it is killed now
        async with asyncio.timeout(_STOP_S):
            await actor.stop.remote()
    ray.kill(actor)
