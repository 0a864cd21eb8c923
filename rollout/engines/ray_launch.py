"""sglang servers over a Ray cluster: each replica in a placement group, as long as the driver lives.

Invariants: every GPU of a replica is set aside before any of its processes starts; a replica that needs one machine is
on one; a server ends with its actor, and an actor with the driver, however they die. Needs the extra `ray`, and
`ray.init()` by the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fairbox.ports import free_port
from rollout.engines import keeper
from rollout.engines.base import EngineUnavailable
from rollout.engines.launch import server_env
from rollout.engines.launch_plan import LaunchConfig, ReplicaPlan, plan, server_command
from rollout.engines.sglang_http import SglangHttp

__all__ = ["RayServers"]

_ASK_S = 30.0
"""For an actor's answer; its process may have to be started first."""
_STOP_S = 40.0
"""The keeper needs 20 s at most."""
_POLL_S = 0.5
_TAIL_BYTES = 2000


class _Server:
    """What Ray runs: one part of a replica, on its machine."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.mkdtemp(prefix="fairbox-sglang-")) / "server.log"

    def place(self) -> tuple[str, int, int]:
        """(address of this machine, a free port, another one)."""
        host = ray.util.get_node_ip_address()
        return host, free_port(host), free_port(host)

    def start(self, words: Sequence[str], env: Mapping[str, str], restarts: int) -> None:
        """Starts the server. Ray has set which GPUs this process, and so the server, sees."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                keeper.command(words, restarts=restarts),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=server_env(env),
                start_new_session=True,
            )

    def state(self) -> tuple[bool, str]:
        """(whether it has ended, the end of its log)."""
        data = self._log.read_bytes() if self._log.exists() else b""
        ended = self._process is None or self._process.poll() is not None
        return ended, data[-_TAIL_BYTES:].decode(errors="replace").strip()

    def stop(self) -> None:
        """Ends the server and waits for it."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S - 10)
            process.kill()

    def pid(self) -> int:
        """Of this actor."""
        return os.getpid()


class RayServers:
    """`async with RayServers(config) as urls`: the URL of each replica, by its name, once all of them answer.

    Raises EngineUnavailable when the cluster has no room within `ready_within_s`, or a server does not start.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self._config = config
        self._groups: list[Any] = []
        self.actors: dict[str, list[Any]] = {}
        """Of each replica, by rank."""

    async def __aenter__(self) -> dict[str, str]:
        try:
            async with asyncio.timeout(self._config.ready_within_s):
                urls = await asyncio.gather(*(self._start(replica) for replica in plan(self._config)))
        except TimeoutError:
            await asyncio.shield(self._stop())
            seconds = self._config.ready_within_s
            raise EngineUnavailable(f"the servers were not ready within {seconds:g} s{await self._why()}") from None
        except BaseException:
            await asyncio.shield(self._stop())
            raise
        return dict(urls)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._stop())

    async def _start(self, replica: ReplicaPlan) -> tuple[str, str]:
        config = self._config
        group = placement_group([part.bundle for part in replica.parts], strategy=replica.strategy)
        self._groups.append(group)
        await asyncio.wrap_future(group.ready().future())
        actors = self.actors[replica.name] = []
        for index, part in enumerate(replica.parts):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            options = {"num_cpus": part.cpus, "num_gpus": part.gpus, "scheduling_strategy": strategy}
            actors.append(ray.remote(_Server).options(**options).remote())
        places = [await _ask(actor.place.remote()) for actor in actors]
        meet = f"{places[0][0]}:{places[0][2]}"
        restarts = config.restarts if len(actors) == 1 else 0  # one part alone can't join the others again
        for part, actor, (host, port, _) in zip(replica.parts, actors, places, strict=True):
            words = server_command(config, replica, part, host=host, port=port, meet=meet)
            await _ask(actor.start.remote(words, dict(config.env), restarts))
        url = f"http://{places[0][0]}:{places[0][1]}"
        await self._ready(url, actors)
        return replica.name, url

    async def _ready(self, url: str, actors: Sequence[Any]) -> None:
        async with SglangHttp(url) as server:
            while True:
                with contextlib.suppress(EngineUnavailable):
                    await server.get("/health", timeout_s=5.0)
                    return
                for actor in actors:
                    ended, tail = await _ask(actor.state.remote())
                    if ended:
                        raise EngineUnavailable(f"{url}: the server ended; its log ends:\n{tail}")
                await asyncio.sleep(_POLL_S)

    async def _why(self) -> str:
        resources = await asyncio.to_thread(ray.available_resources)
        wanted = [part.bundle for replica in plan(self._config) for part in replica.parts]
        return f"; wanted are {wanted}, free are {resources.get('GPU', 0):g} GPUs and {resources.get('CPU', 0):g} CPUs"

    async def _stop(self) -> None:
        actors = [actor for each in self.actors.values() for actor in each]
        self.actors = {}
        await asyncio.gather(*(_end(actor) for actor in actors))
        for group in self._groups:
            with contextlib.suppress(RayError):
                remove_placement_group(group)
        self._groups = []


async def _ask(answer: Any) -> Any:
    """What an actor answers. Raises EngineUnavailable when it does not."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(answer.future()), _ASK_S)
    except (RayError, TimeoutError) as error:
        raise EngineUnavailable(f"Ray: {type(error).__name__}: {str(error).splitlines()[0]}") from None


async def _end(actor: Any) -> None:
    try:
        await asyncio.wait_for(asyncio.wrap_future(actor.stop.remote().future()), _STOP_S)
    except (RayError, TimeoutError):
        pass  # its machine is gone, or it is killed now
    finally:
        with contextlib.suppress(RayError):
            ray.kill(actor)
