"""The three hosts of the limiter, each with the same buckets, behind one small surface.

A host serves many tests, so each test takes buckets of its own from it. Times are short enough for tests of what they
cost, and long enough for a loaded machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from fairbox.channels import open_channel
from limiter.client import ExecutorSession, LimiterClient
from limiter.client.grpc_transport import GrpcTransport
from limiter.client.transport import Transport
from limiter.core import BucketLimits, Timing
from limiter.v1 import limiter_pb2 as pb
from limiter.v1 import limiter_pb2_grpc
from tests.limiter.contract.network import Cuttable
from tests.limiter.inprocess import InProcessLimiter
from tests.limiter.servers import ROOT

TIMING = Timing(grace=3.0, executor_ttl=4.0)
EACH = 12
"""Buckets of each kind."""
LIMITS = (1, 2, 3)
MAX_QUEUED = 4
"""Of the buckets `short_N`, whose limit is 1."""


def buckets() -> tuple[BucketLimits, ...]:
    """All buckets: `limitL_N`, and `short_N` with a short queue."""
    found = [BucketLimits(f"limit{limit}_{n}", limit, start_by=60.0) for limit in LIMITS for n in range(EACH)]
    found += [BucketLimits(f"short_{n}", 1, max_queued=MAX_QUEUED, start_by=60.0) for n in range(EACH)]
    return tuple(found)


class Counts(Protocol):
    """What every host counts of a bucket."""

    @property
    def held(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def granted_total(self) -> int: ...


class Host:
    """One limiter. `spec` is what another process reaches it by; empty: no other process can."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._used: Counter[int | str] = Counter()

    def bucket(self, kind: int | str) -> str:
        """A bucket that no other test uses, by its limit, or "short"."""
        number = self._used[kind]
        self._used[kind] += 1
        assert number < EACH, "raise EACH"
        return f"{kind}_{number}" if isinstance(kind, str) else f"limit{kind}_{number}"

    def transport(self) -> Transport:
        """What sessions travel over."""
        raise NotImplementedError

    async def counts(self, bucket: str) -> Counts:
        """The state of a bucket now."""
        raise NotImplementedError

    def client(self, network: Cuttable | None = None) -> LimiterClient:
        """A client, over a network that can be cut."""
        transport = network or self.transport()
        return LimiterClient(transport.target, transport=transport)

    def executor(self, *, executor_id: str = "", network: Cuttable | None = None) -> ExecutorSession:
        """An executor's session."""
        transport = network or self.transport()
        return ExecutorSession(transport.target, executor_id=executor_id, transport=transport)


class InProcessHost(Host):
    """The limiter of this event loop."""

    def __init__(self, limiter: InProcessLimiter) -> None:
        super().__init__("")
        self._limiter = limiter

    def transport(self) -> Transport:
        return self._limiter.transport()

    async def counts(self, bucket: str) -> Counts:
        return self._limiter.statistics().bucket(bucket)


class GrpcHost(Host):
    """`python -m limiter` in a process of its own."""

    def __init__(self, address: str, admin: str) -> None:
        super().__init__(f"grpc {address}")
        self._address = address
        self._admin = admin

    def transport(self) -> Transport:
        return GrpcTransport(self._address)

    async def counts(self, bucket: str) -> Counts:
        return await _asked(self._admin, bucket)


class RayHost(Host):
    """A named actor of a real Ray cluster."""

    def __init__(self, cluster: str, name: str, admin: str) -> None:
        super().__init__(f"ray {cluster} {name}")
        self.name = name
        self._admin = admin

    def transport(self) -> Transport:
        from limiter.ray import RayTransport

        return RayTransport(self.name)

    async def counts(self, bucket: str) -> Counts:
        return await _asked(self._admin, bucket)


async def _asked(admin: str, bucket: str) -> Counts:
    async with open_channel(admin) as channel:
        stub = cast("limiter_pb2_grpc.LimiterAdminServiceAsyncStub", limiter_pb2_grpc.LimiterAdminServiceStub(channel))
        return (await stub.GetStatus(pb.GetStatusRequest(bucket=bucket), timeout=10)).buckets[0]


def settings() -> list[str]:
    """Words of a limiter's process with all buckets."""
    words = ["fresh=true", f"grace_s={TIMING.grace}", f"executor_ttl_s={TIMING.executor_ttl}"]
    for bucket in buckets():
        path = f"buckets.{bucket.name}"
        words += [f"{path}.max_in_flight={bucket.max_in_flight}", f"{path}.max_queued={bucket.max_queued}"]
        words.append(f"{path}.start_by_s={bucket.start_by}")
    return words


@contextmanager
def grpc_host() -> Iterator[GrpcHost]:
    """A limiter's process; killed at the end."""
    words = [f"{name}=127.0.0.1:0" for name in ("listen", "admin_listen", "health_listen")]
    command = [sys.executable, "-m", "limiter", "metrics_listen=", *words, *settings()]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = ""
            while (found := re.search(r"listening on (\S+), for operators on (\S+)", line)) is None:
                line = process.stderr.readline()
                assert line, "the limiter did not start"
            yield GrpcHost(found[1], found[2])
        finally:
            process.kill()
