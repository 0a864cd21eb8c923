"""A client or an executor in a process of its own, to be killed: `SPEC ROLE BUCKET`. Says READY when it holds a lease
(and, as a client, waits for another one)."""

from __future__ import annotations

import asyncio
import sys

from limiter import ExecutorSession, LimiterClient
from limiter.client.grpc_transport import GrpcTransport
from limiter.client.transport import Transport


def transport_of(spec: str) -> Transport:
    """What `Host.spec` says."""
    kind, address, *name = spec.split()
    if kind == "grpc":
        return GrpcTransport(address)
    import ray

    from limiter.ray import RayTransport

    ray.init(address=address, log_to_driver=False, configure_logging=False)
    return RayTransport(name[0])


async def hold_and_wait(transport: Transport, bucket: str) -> None:
    """Holds a lease and waits for another one."""
    async with LimiterClient(transport.target, transport=transport) as client, client.lease(bucket):
        waiter = asyncio.create_task(client.lease(bucket, queue_timeout=600).__aenter__())
        while not client.waiting:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        print("READY", flush=True)  # noqa: T201 - for the test
        await waiter


async def bind(transport: Transport, bucket: str) -> None:
    """Binds a lease and runs for ever."""
    async with ExecutorSession(transport.target, transport=transport) as executor, executor.acquire(bucket):
        print("READY", flush=True)  # noqa: T201 - for the test
        await asyncio.sleep(600)


def main() -> None:
    """Entry point."""
    spec, role, bucket = sys.argv[1:]
    work = {"client": hold_and_wait, "executor": bind}[role]
    asyncio.run(work(transport_of(spec), bucket))
