"""A cluster for tests: an API server, a node that runs what was applied, and the real kubectl between you and both.

`async with deployed(folder) as system: await system.apply("-f", "k8s/"); await system.settled()`. The node reads the
server's objects as they change, and writes back how Deployments stand, so that `kubectl rollout status` waits for what
is really there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from tests.k8s.apiserver import ApiServer
from tests.k8s.kubectl import Kubectl
from tests.k8s.manifests import ROOT
from tests.k8s.pods.access import Access
from tests.k8s.pods.node import Node, take_rig
from tests.k8s.pods.objects import Document
from tests.k8s.pods.pod import Pod

__all__ = ["LEVELS", "System", "deployed"]

_EVERY_S = 0.1
_KINDS = (
    ("", "namespaces"),
    ("", "configmaps"),
    ("", "secrets"),
    ("", "services"),
    ("", "serviceaccounts"),
    ("apps", "deployments"),
    ("apps", "statefulsets"),
    ("batch", "jobs"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("networking.k8s.io", "networkpolicies"),
)


class System:
    """The parts, and what tests do with them."""

    def __init__(self, server: ApiServer, kubectl: Kubectl, node: Node) -> None:
        self.server, self.kubectl, self.node = server, kubectl, node
        self._seen = -1
        self._told: dict[tuple[str, str], dict[str, int]] = {}

    async def apply(self, *words: str) -> None:
        """`kubectl apply` from the repository's root."""
        await self.kubectl.ok("apply", *words)
        self.read()

    async def settled(self, within_s: float = 180.0) -> None:
        """Until everything that was applied runs and is ready."""
        self.read()
        await self.node.settled(within_s)

    def of(self, workload: str) -> list[Pod]:
        return self.node.of(workload)

    async def job(self, name: str, namespace: str = "fairbox", *, labels: dict[str, str], words: list[str]) -> None:
        """Starts a pod of the rollout image with other words than `rollout`, and with these labels; its environment and
        rights are those of the template of rollout jobs."""
        source = ("--from=cronjob/rollout", "--dry-run=client", "-o", "json")
        made = await self.kubectl.ok("-n", "fairbox", "create", "job", name, *source)
        document = json.loads(made.out)
        document["metadata"] = {"name": name, "namespace": namespace}
        template = document["spec"]["template"]
        template["metadata"]["labels"] = {"app": name, **labels}
        (container,) = template["spec"]["containers"]
        container["command"], container["args"] = words[:1], words[1:]
        if namespace != "fairbox":  # its volume is a claim of that namespace
            container.pop("volumeMounts", None)
            template["spec"].pop("volumes", None)
        await self.kubectl.ok("apply", "-f", "-", stdin=json.dumps(document))
        self.read()

    def read(self) -> None:
        """Hands the node what the server has, where that is new."""
        store = self.server.api.store
        if store.version != self._seen:
            self._seen = store.version
            self.node.apply([each for group, plural in _KINDS for each in store.all(group, plural)])

    async def tell(self) -> None:
        """Writes how Deployments stand, where that is new."""
        for workload in self.node.objects.workloads():
            if workload.kind != "Deployment":
                continue
            facts = [pod.facts() for pod in self.node.of(workload.name) if not pod.ending]
            generation = int(self._document(workload.namespace, workload.name)["metadata"].get("generation", 1))
            status = {
                "observedGeneration": generation,
                "replicas": len(facts),
                "updatedReplicas": sum(each.revision == workload.revision for each in facts),
                "readyReplicas": sum(each.available for each in facts),
                "availableReplicas": sum(each.available for each in facts),
            }
            key = (workload.namespace, workload.name)
            if self._told.get(key) != status:
                self._told[key] = status
                where = ("-n", workload.namespace, "patch", "deployment", workload.name)
                patch = json.dumps({"status": status})
                await self.kubectl(*where, "--subresource=status", "--type=merge", "-p", patch)

    def _document(self, namespace: str, name: str) -> Document:
        found = self.node.objects.find("Deployment", namespace, name)
        assert found is not None
        return found

    async def follow(self) -> None:
        """Until it is cancelled."""
        while True:
            self.read()
            await self.tell()
            await asyncio.sleep(_EVERY_S)


@contextlib.asynccontextmanager
async def deployed(folder: Path, *applied: str) -> AsyncIterator[System]:
    """With `applied`, `kubectl apply` of these words, and everything ready."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer())
        kubectl = Kubectl(server.kubeconfig(folder / "kubeconfig"))
        access = Access(server, folder / "access")
        rig = stack.enter_context(take_rig())
        node = await stack.enter_async_context(Node(folder, rig, more=access.of))
        await stack.enter_async_context(access.listening(node))
        system = System(server, kubectl, node)
        task = asyncio.create_task(system.follow(), name="follow the API server")
        stack.push_async_callback(_ended, task)
        if applied:
            await system.apply(*applied)
            await system.settled()
        yield system
        assert not server.mistakes


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    for outcome in await asyncio.gather(task, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


LEVELS = {"landlock": ("-f", str(ROOT / "k8s")), "namespaces": ("-k", str(Path(__file__).with_name("userns")))}
"""The isolation levels of programs, and what `kubectl apply` takes for each."""
