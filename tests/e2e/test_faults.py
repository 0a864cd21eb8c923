"""Crashes of clients in the middle of the work: what they held is given back."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import grpc

from executor_service.v1 import executor_pb2, executor_pb2_grpc
from limiter.v1 import limiter_pb2, limiter_pb2_grpc
from tests.e2e.conftest import Service
from tests.executor.servers import wait_for

RUNNER = textwrap.dedent(
    """
    import asyncio, sys
    from executor_service import ExecutorClient
    from limiter import LimiterClient
    async def main():
        async with LimiterClient(sys.argv[1]) as limiter, ExecutorClient(sys.argv[2]) as executor:
            async with limiter.lease(bucket="code") as lease:
                print("running", flush=True)
                await executor.execute("import time; time.sleep(60)", lease=lease)
    asyncio.run(main())
    """
)


def bucket(service: Service) -> limiter_pb2.BucketStatus:
    """State of the bucket `code`."""
    with grpc.insecure_channel(service.ports.limiter_admin) as channel:
        stub = limiter_pb2_grpc.LimiterAdminServiceStub(channel)
        return stub.GetStatus(limiter_pb2.GetStatusRequest(), timeout=10).buckets[0]


def executor_status(service: Service) -> executor_pb2.GetStatusResponse:
    """State of the executor."""
    with grpc.insecure_channel(service.ports.executor) as channel:
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        return stub.GetStatus(executor_pb2.GetStatusRequest(), timeout=10)


def test_killing_a_client_kills_its_program_and_frees_its_token(service: Service) -> None:
    words = [sys.executable, "-c", RUNNER, service.ports.limiter, service.ports.executor]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as runner:
        wait_for(lambda: executor_status(service).running == 1 and bucket(service).bound == 1)
        runner.kill()
    wait_for(lambda: executor_status(service).running == 0 and bucket(service).held == 0)
