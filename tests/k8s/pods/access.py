"""How pods reach the API server: a port of the node that leads to it, and what a pod that asks for a token finds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.k8s.apiserver import ApiServer
from tests.k8s.pods.node import Node
from tests.k8s.pods.pod import Pod

__all__ = ["Access"]

HOST, PORT = "kubernetes.default.svc", 6443
"""In a cluster this is an address; here the certificate is for a name, which stands in each pod's hosts file."""
_MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount"
_CHUNK = 64 << 10


class Access:
    """Pass `of` to the node as `more`, and enter `listening` while pods run."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._relays: set[asyncio.Task[None]] = set()

    def of(self, pod: Pod) -> tuple[dict[str, str], list[str]]:
        """Variables and options of podman. A pod without a token has the variables, as in a cluster."""
        variables = {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(PORT)}
        spec = pod.workload.template["spec"]
        account = spec.get("serviceAccountName") or "default"
        found = pod.objects.find("ServiceAccount", pod.namespace, account) or {}
        mounts = spec.get("automountServiceAccountToken", found.get("automountServiceAccountToken", True))
        if not mounts:
            return variables, []
        folder = self._folder / pod.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(self._server.pod_token(pod.namespace, account), encoding="ascii")
        (folder / "ca.crt").write_bytes(self._server.certificate)
        (folder / "namespace").write_text(pod.namespace, encoding="ascii")
        return variables, ["--volume", f"{folder}:{_MOUNTED}:ro"]

    @contextlib.asynccontextmanager
    async def listening(self, node: Node) -> AsyncIterator[None]:
        """Relays what comes to the node's port."""
        node.hosts[HOST] = node.bridge.node
        server = await asyncio.start_server(self._relay, node.bridge.node, PORT)
        async with server:
            yield
            for task in tuple(self._relays):
                task.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            with contextlib.suppress(OSError):
                upstream, downstream = await asyncio.open_connection("127.0.0.1", self._server.port)
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_copy(reader, downstream))
                        both.create_task(_copy(upstream, writer))
                finally:
                    downstream.close()
        except (asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            writer.close()
            self._relays.discard(task)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()
