"""A node: keeps pods as the applied objects want them, and Services, names and policies as the pods are.

Invariants: whatever was started ends with the block; a pod that could not be run is told by `settled`, with its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import secrets
import string
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from tests.k8s.pods.bridge import Bridge, within
from tests.k8s.pods.commands import CommandError
from tests.k8s.pods.deployments import decide
from tests.k8s.pods.nameserver import NameServer
from tests.k8s.pods.objects import Document, Objects, Workload
from tests.k8s.pods.pod import Pod, Surroundings
from tests.k8s.pods.podman import Podman
from tests.k8s.pods.policies import ruleset
from tests.k8s.pods.seccomp import DEBIAN, runtime_default
from tests.k8s.pods.services import Endpoint, names, virtual_addresses, virtual_services
from tests.k8s.pods.volumes import Volumes

__all__ = ["Node", "take_rig"]

_TICK_S = 0.2
"""Pods become available by the passing of time, too."""
_VIRTUAL = "10.97.7."
"""Addresses of Services, where the API server gave none."""
_SETTLED_S = 120.0
_LETTERS = string.ascii_lowercase + string.digits

More = Callable[[Pod], tuple[dict[str, str], list[str]]]


@contextlib.contextmanager
def take_rig() -> Iterator[int]:
    """A number that no other process on this machine has now."""
    for number in range(10):
        with Path(tempfile.gettempdir(), f"fairbox-rig-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number
            return
    raise AssertionError("ten rigs run on this machine already")


class Node:
    """`async with Node(folder, rig) as node: node.apply(documents); await node.settled()`.

    `rig`, from 0 to 9, tells apart the names and networks of several on one machine; `take_rig` finds one that is free.
    What an earlier one of the same number has left is removed first."""

    def __init__(self, folder: Path, rig: int, *, more: More | None = None) -> None:
        self.objects = Objects(())
        self.pods: list[Pod] = []
        self.ended: list[Pod] = []
        """Pods that are gone, the last ones last."""
        self.podman = Podman(f"fairbox-{rig}")
        self.bridge = Bridge(f"fbxr{rig}", f"10.232.{10 + rig}.")
        self.names = NameServer(self.bridge.nameserver)
        self.volumes = Volumes(folder)
        self.hosts: dict[str, str] = {}
        """Names that pods know without asking the name server."""
        self._folder = folder
        self._more = more or (lambda pod: ({}, []))
        self._indices = itertools.count()
        self._addresses: dict[tuple[str, str], str] = {}
        self._rules: dict[str, str] = {}
        self._ruling = asyncio.Lock()
        self._news = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Node:
        profiles = self._folder / "seccomp" / "profiles"
        profiles.mkdir(parents=True)
        profile = runtime_default(json.loads(DEBIAN.read_text(encoding="utf-8")))
        (profiles.parent / "runtime-default.json").write_text(json.dumps(profile))
        async with contextlib.AsyncExitStack() as stack:
            await self.podman.remove_all()
            await stack.enter_async_context(self.bridge)
            await stack.enter_async_context(self.names)
            stack.push_async_callback(self.podman.remove_all)
            stack.push_async_callback(self._end_all)
            self._tasks["node"] = asyncio.create_task(self._keep(), name="node")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._stack.aclose())

    def apply(self, documents: Iterable[Document]) -> None:
        """All that the API server has now."""
        self.objects = Objects(documents)
        self._news.set()

    def of(self, workload: str) -> list[Pod]:
        """The pods of a workload that are there, the oldest first."""
        return [pod for pod in self.pods if pod.workload.name == workload]

    async def settled(self, within_s: float = _SETTLED_S) -> None:
        """Until every Deployment has its pods, all of the present revision and available."""
        deadline = time.monotonic() + within_s
        while not all(self._as_wanted(workload) for workload in self.objects.workloads()):
            self._check()
            if time.monotonic() > deadline:
                raise AssertionError(f"not as wanted after {within_s:g} s: {await self._report()}")
            await asyncio.sleep(_TICK_S / 4)

    async def finished(self, job: str, within_s: float = 300.0) -> Pod:
        """The pod of a Job, when it has ended."""
        deadline = time.monotonic() + within_s
        while True:
            for pod in self.ended:
                if pod.workload.name == job and pod.workload.kind == "Job":
                    return pod
            self._check()
            assert time.monotonic() < deadline, f"job {job} has not ended: {await self._report()}"
            await asyncio.sleep(_TICK_S / 4)

    def _check(self) -> None:
        """Raises what a pod, or the node itself, has failed at."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def _as_wanted(self, workload: Workload) -> bool:
        if workload.kind == "Job" or workload.lacking():
            return True
        pods = [pod for pod in self.pods if _owner(pod.workload) == _owner(workload)]
        facts = [pod.facts() for pod in pods]
        return len(facts) == workload.replicas and all(
            each.available and each.revision == workload.revision for each in facts
        )

    async def _report(self) -> str:
        lines = []
        for pod in [*self.pods, *self.ended[-3:]]:
            state = "ready" if pod.ready else "ending" if pod.ending else "not ready"
            lines.append(f"{pod.name}: {state}, {pod.restarts} restarts\n{(await pod.logs())[-2000:]}")
        return "\n".join(lines) or "no pods"

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _TICK_S)
            self._news.clear()
            for workload in self.objects.workloads():
                self._decide(workload)
            wanted = {_owner(workload) for workload in self.objects.workloads()}
            for pod in self.pods:
                if _owner(pod.workload) not in wanted and not pod.ending:
                    pod.end()
            await self._publish()

    def _decide(self, workload: Workload) -> None:
        pods = [pod for pod in [*self.pods, *self._finished(workload)] if _owner(pod.workload) == _owner(workload)]
        decision = decide(workload, [pod.facts() for pod in pods])
        for _ in range(decision.start):
            self._start(workload)
        for pod in pods:
            if pod.name in decision.end:
                pod.end()

    def _finished(self, workload: Workload) -> list[Pod]:
        """Pods of a Job count when they have ended."""
        return self.ended if workload.kind == "Job" else []

    def _start(self, workload: Workload) -> None:
        suffix = "".join(secrets.choice(_LETTERS) for _ in range(5))
        middle = "" if workload.kind == "Job" else f"-{workload.revision}"
        around = Surroundings(
            self.podman, self.bridge, self.volumes, self._folder, self.hosts, self._rule, self._news.set, self._more
        )
        pod = Pod(f"{workload.name}{middle}-{suffix}", next(self._indices), workload, self.objects, around)
        self.pods.append(pod)
        self._tasks[pod.name] = asyncio.create_task(self._live(pod), name=pod.name)

    async def _live(self, pod: Pod) -> None:
        try:
            await pod.live()
        finally:
            self.pods.remove(pod)
            self.ended.append(pod)
            self._rules.pop(pod.name, None)
            self._news.set()

    async def _publish(self) -> None:
        """Names and rules follow the pods: first the rules, so that a name never leads to a closed door."""
        self._addresses = virtual_addresses(self.objects, _VIRTUAL, self._addresses)
        for pod in [pod for pod in self.pods if pod.pid]:
            # A pod may go meanwhile, and its network with it.
            with contextlib.suppress(CommandError):
                await self._rule(pod)
        endpoints = [pod.endpoint() for pod in self.pods]
        self.names.table = names(self.objects, endpoints, self._addresses)

    async def _rule(self, pod: Pod) -> None:
        async with self._ruling:
            self._addresses = virtual_addresses(self.objects, _VIRTUAL, self._addresses)
            peers = [*(each.endpoint() for each in self.pods), self._nameserver()]
            services = virtual_services(self.objects, peers, self._addresses)
            text = ruleset(pod.endpoint(), self.objects, peers, services, self.bridge.node)
            if pod.pid and self._rules.get(pod.name) != text:
                await within(pod.pid, "nft", "-f", "-", stdin=text)
                self._rules[pod.name] = text

    def _nameserver(self) -> Endpoint:
        labels = {"k8s-app": "kube-dns"}
        return Endpoint("kube-system", "kube-dns", labels, self.bridge.nameserver, True, {"dns": 53})

    async def _end_all(self) -> None:
        """Without grace: nobody waits for what runs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _owner(workload: Workload) -> tuple[str, str, str]:
    return (workload.kind, workload.namespace, workload.name)
