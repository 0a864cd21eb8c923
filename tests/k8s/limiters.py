"""Limiters as their pods would have them, as processes of this machine: settings, account and token of k8s/, and
an API server that knows Leases alone.

A process gets a mount namespace of its own with the token where every pod finds it, so that it runs unmodified; its
way to the API server is a proxy that can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc.aio
import pytest
import trustme

from fairbox.net.channels import open_channel
from fairbox.net.ports import free_port
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.k8s.manifests import ROOT, of_kind, workload
from tests.limiter.chaos.proxy import Proxy
from tests.limiter.leadership.lease_server import LeaseServer

if TYPE_CHECKING:
    from limiter.v1.limiter_pb2_grpc import LimiterAdminServiceAsyncStub

TOKEN = "token-of-the-limiter"
"""Taken by the API server, and mounted into every pod."""

_ACCOUNT = "kubernetes.io/serviceaccount"
_ENTER = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
_MOUNT = (
    f"mount -t tmpfs none /var/run && mkdir -p /var/run/secrets/{_ACCOUNT} && "
    f'mount --bind "$0" /var/run/secrets/{_ACCOUNT} && exec "$@"'
)
_POLL_S = 0.02
_ANSWER_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class LeaseApi:
    """The API server of these tests."""

    server: LeaseServer
    certificate: bytes
    """The authority that signed the server's certificate, as PEM."""

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])


@asynccontextmanager
async def lease_api() -> AsyncIterator[LeaseApi]:
    """Over TLS, and for those alone that show the token."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with LeaseServer(tls=tls) as server:
        server.tokens = {TOKEN}
        yield LeaseApi(server, authority.cert_pem.bytes())


@dataclass(slots=True)
class Pod:
    """One limiter that runs."""

    name: str
    uid: str
    process: asyncio.subprocess.Process
    proxy: Proxy
    admin: int
    account: Path
    """The folder with its token."""
    log: Path
    last_led: float = field(default=float("-inf"))
    """Monotonic seconds at which it was last asked a question that it answered with "I lead"."""
    first_led: float = field(default=float("inf"))
    """Monotonic seconds at which it first answered that it leads."""

    def cut(self) -> None:
        """Nothing passes between it and the API server, and nothing is reset: as when a network is lost."""
        self.proxy.up.open.clear()
        self.proxy.down.open.clear()


@cache
def _can_enter() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_ENTER, "true"], capture_output=True, check=False).returncode == 0


@asynccontextmanager
async def pod(api: LeaseApi, folder: Path, name: str, *, uid: str = "", **settings: str) -> AsyncIterator[Pod]:
    """`settings`: of the limiter, over those of its manifest. Skips where a mount namespace can't be had."""
    if not _can_enter():
        pytest.skip("a mount namespace can't be had here, and a pod's token has one place")
    account, log = folder / f"{name}-account", folder / f"{name}.log"
    account.mkdir(exist_ok=True)
    (account / "token").write_text(TOKEN, encoding="utf-8")
    (account / "ca.crt").write_bytes(api.certificate)
    (account / "namespace").write_text("fairbox", encoding="utf-8")
    (config,) = (each["data"] for each in of_kind("ConfigMap") if each["metadata"]["name"] == "limiter")
    (folder / "limiter.yaml").write_text(config["limiter.yaml"], encoding="utf-8")
    admin = free_port()
    async with Proxy(api.port) as proxy:
        own = workload("limiter").env | {
            "POD_NAME": name,
            "POD_UID": uid or f"uid-of-{name}",
            "POD_NAMESPACE": "fairbox",
            "LIMITER_LISTEN": "127.0.0.1:0",
            "LIMITER_HEALTH_LISTEN": "127.0.0.1:0",
            "LIMITER_ADMIN_LISTEN": f"127.0.0.1:{admin}",
            "LIMITER_METRICS_LISTEN": "",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": proxy.address.rpartition(":")[2],
        }
        own |= {f"LIMITER_{key.upper()}": value for key, value in settings.items()}
        command = [sys.executable, "-m", "limiter", "--config", str(folder / "limiter.yaml")]
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *_ENTER, "sh", "-c", _MOUNT, str(account), *command,
                cwd=ROOT, env={"PATH": os.environ["PATH"], **own}, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            yield Pod(name, own["POD_UID"], process, proxy, admin, account, log)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _status(which: Pod) -> pb.GetStatusResponse:
    """Its own account; empty where it does not answer."""
    async with open_channel(f"127.0.0.1:{which.admin}") as channel:
        stub = cast("LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await stub.GetStatus(pb.GetStatusRequest(), timeout=_ANSWER_WITHIN_S)
    return pb.GetStatusResponse()


async def leads(which: Pod) -> bool:
    """Says whether it claims to lead now; a limiter that does not answer does not lead. Records the times of such
    answers."""
    asked = time.monotonic()
    if not (await _status(which)).leader:
        return False
    which.last_led = max(which.last_led, asked)
    which.first_led = min(which.first_led, time.monotonic())
    return True


async def until_follows(which: Pod, leader: Pod, *, within: float) -> None:
    """Returns when it says that the other one leads."""
    async with asyncio.timeout(within):
        while (await _status(which)).leader_name != f"{leader.name}_{leader.uid}":
            assert which.process.returncode is None, which.log.read_text()
            await asyncio.sleep(_POLL_S)


async def until_leads(which: Pod, *, within: float) -> float:
    """Seconds until it led, from this call on."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(within):
            while not await leads(which):
                assert which.process.returncode is None, which.log.read_text()
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"{which.name} does not lead after {within} s: {which.log.read_text()}") from None
    return time.monotonic() - began
