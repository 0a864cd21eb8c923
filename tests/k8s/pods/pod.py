"""One pod: its sandbox, its container, its probes and its end, as a kubelet does it.

    sandbox -> network and its rules -> container -> probes ... -> (ended by itself: started again, or finished)
    end() -> not ready any more -> preStop -> SIGTERM -> SIGKILL when the grace period is over -> everything removed

Invariants: the container starts after its network's rules are there; it is ready only while its probe says so and its
end was not asked for; whatever happens, nothing of it is left when `live` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.k8s.pods.bridge import Bridge
from tests.k8s.pods.containers import ContainerPlan, Probe, plan_container, plan_sandbox
from tests.k8s.pods.deployments import PodFacts
from tests.k8s.pods.environment import environment
from tests.k8s.pods.objects import Objects, Workload
from tests.k8s.pods.podman import PAUSE, Podman
from tests.k8s.pods.probes import ProbeState
from tests.k8s.pods.services import DOMAIN, Endpoint
from tests.k8s.pods.volumes import Volumes

__all__ = ["Pod", "Surroundings"]

_TICK_S = 0.05
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Before a container is started again. A kubelet waits longer from the second time on."""
_KILLED_S = 30.0
"""From SIGKILL to the end, at most."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What pods of a node share."""

    podman: Podman
    bridge: Bridge
    volumes: Volumes
    folder: Path
    """Has the profiles of seccomp, and a folder of each pod."""
    hosts: Mapping[str, str]
    """Names and addresses that every pod knows without asking."""
    ruled: Callable[[Pod], Awaitable[None]]
    """Puts the rules of a pod's network in place."""
    changed: Callable[[], None]
    """Tells the node that something of a pod is not as it was."""
    more: Callable[[Pod], tuple[dict[str, str], list[str]]]
    """Variables and options of podman that the cluster gives to every pod: how to reach its API server."""


class Pod:
    """See the module. `index` is its number on the node."""

    def __init__(self, name: str, index: int, workload: Workload, objects: Objects, around: Surroundings) -> None:
        self.name, self.workload, self.objects = name, workload, objects
        self.namespace, self.revision = workload.namespace, workload.revision
        self.uid = str(uuid.uuid4())
        self.address = around.bridge.take_address()
        self.pid = 0
        """Of its sandbox, while there is one."""
        self.restarts = 0
        self.exit_code: int | None = None
        """Of a program that is not started again."""
        self.ended_logs = ""
        """What its last container had written, once it has ended."""
        self._around = around
        self._spec = workload.template["spec"]
        self._index = index
        self._probes: ProbeState | None = None
        self._end = asyncio.Event()
        self._container = f"{name}.{self.namespace}.{around.bridge.name}"
        self._sandbox = f"{self._container}.sandbox"
        variables, self._options = around.more(self)
        fields = {
            "metadata.name": name,
            "metadata.namespace": self.namespace,
            "metadata.uid": self.uid,
            "status.podIP": self.address,
            "status.hostIP": around.bridge.node,
            "spec.nodeName": "node",
        }
        (container,) = self._spec["containers"]
        self.plan: ContainerPlan = plan_container(
            self._spec,
            index=index,
            environment=variables | environment(container, self.namespace, objects, fields),
            seccomp_folder=str(around.folder / "seccomp"),
        )

    @property
    def ending(self) -> bool:
        return self._end.is_set()

    @property
    def ready(self) -> bool:
        return self._probes is not None and self._probes.ready and not self.ending

    def facts(self) -> PodFacts:
        minimum = float(self.workload.spec.get("minReadySeconds", 0))
        available = self.ready and self._probes is not None and self._probes.available(time.monotonic(), minimum)
        return PodFacts(self.name, self.revision, available, self.ending, self.exit_code == 0)

    def endpoint(self) -> Endpoint:
        (container,) = self._spec["containers"]
        ports = {port["name"]: port["containerPort"] for port in container.get("ports") or () if "name" in port}
        labels = {**self.workload.labels, "pod-name": self.name}
        return Endpoint(self.namespace, self.name, labels, self.address, self.ready, ports)

    def end(self) -> None:
        """As when it is deleted. Idempotent."""
        self._end.set()
        self._around.changed()

    async def kill(self, signal: str = "KILL") -> None:
        """Signals its program, which no grace precedes."""
        await self._around.podman.signal(self._container, signal)

    async def program_pid(self) -> int:
        """Its program, as the machine numbers it."""
        return await self._around.podman.pid(self._container)

    async def facts_of_container(self) -> dict[str, object]:
        """What podman knows of it."""
        return await self._around.podman.facts(self._container)

    async def execute(self, *words: str, within_s: float = 60.0) -> str:
        """Runs a command in its container."""
        return await self._around.podman.execute(self._container, *words, within_s=within_s)

    async def logs(self) -> str:
        """What its container has written, also after its end."""
        return self.ended_logs or await self._around.podman.logs(self._container)

    async def live(self) -> None:
        """From the first sandbox to the last trace."""
        try:
            await self._open()
            while not self.ending:
                code = await self._one_life()
                if self.ending or not self.plan.restart:
                    self.exit_code = code
                    break
                delay = _BACKOFF_S[min(self.restarts, len(_BACKOFF_S) - 1)]
                self.restarts += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), delay)
        finally:
            await asyncio.shield(self._remove())

    async def _open(self) -> None:
        options = [*plan_sandbox(self._spec, self._index), "--hostname", self.name, "--entrypoint", PAUSE[0]]
        await self._around.podman.start(self._sandbox, self.plan.image, options, PAUSE[1:])
        self.pid = await self._around.podman.pid(self._sandbox)
        await self._around.bridge.plug(self.pid, self.address)
        await self._around.ruled(self)

    async def _one_life(self) -> int:
        """Of its container; its exit code."""
        shared = [f"--{kind}=container:{self._sandbox}" for kind in ("network", "uts", "ipc", *self._user_namespace())]
        mounts = [*self._around.volumes.options(self.name, self.namespace, self.plan, self.objects), *self._resolver()]
        podman = self._around.podman
        await podman.remove(self._container)
        options = [*shared, *mounts, *self._options, *self.plan.options]
        await podman.start(self._container, self.plan.image, options, self.plan.command)
        self._probes = ProbeState(self.plan, time.monotonic())
        waiting = asyncio.create_task(podman.exit_code(self._container), name=f"wait for {self._container}")
        try:
            await self._watch(waiting)
            if not waiting.done():
                await self._stop(waiting)
            return await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            self._probes = None
            self._around.changed()

    async def _watch(self, waiting: asyncio.Task[int]) -> None:
        """Until it has ended by itself, is to end, or is broken and was killed."""
        probes = self._probes
        assert probes is not None
        while not waiting.done() and not self.ending:
            due = probes.due(time.monotonic())
            if due is None:
                await asyncio.wait({waiting}, timeout=_TICK_S)
                continue
            before = probes.ready
            probes.answered(due, await _healthy(self.address, due.probe), time.monotonic())
            if probes.ready != before:
                self._around.changed()
            if probes.broken:
                await self.kill()
                await asyncio.wait({waiting}, timeout=_KILLED_S)

    async def _stop(self, waiting: asyncio.Task[int]) -> None:
        deadline = time.monotonic() + self.plan.grace_s
        await asyncio.wait({waiting}, timeout=min(self.plan.pre_stop_s, self.plan.grace_s))
        await self.kill("TERM")
        await asyncio.wait({waiting}, timeout=max(0.0, deadline - time.monotonic()))
        if not waiting.done():
            await self.kill()
            await asyncio.wait({waiting}, timeout=_KILLED_S)

    def _user_namespace(self) -> tuple[str, ...]:
        return ("userns",) if self.plan.ids_from else ()

    def _resolver(self) -> list[str]:
        """The files that a kubelet writes: who resolves names, and names that need nobody."""
        folder = self._around.folder / "pods" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        search = f"{self.namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
        file = folder / "resolv.conf"
        file.write_text(f"search {search}\nnameserver {self._around.bridge.nameserver}\noptions ndots:5\n")
        hosts = {"localhost": "127.0.0.1", self.name: self.address, **self._around.hosts}
        table = folder / "hosts"
        table.write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        return ["--volume", f"{file}:/etc/resolv.conf:ro", "--volume", f"{table}:/etc/hosts:ro"]

    async def _remove(self) -> None:
        self._end.set()
        self.ended_logs = await self._around.podman.logs(self._container)
        await self._around.podman.remove(self._container)
        await self._around.podman.remove(self._sandbox)
        self._around.bridge.free(self.address)
        self._around.volumes.remove(self.name)
        self.pid = 0
        self._around.changed()


async def _healthy(address: str, probe: Probe) -> bool:
    async with grpc.aio.insecure_channel(f"{address}:{probe.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = health_pb2.HealthCheckRequest(service=probe.service)
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe.timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
