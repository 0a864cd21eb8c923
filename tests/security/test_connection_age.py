"""Connections that come of age while they are used: nothing that is under way is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from executor_service import ExecutionResult, ExecutorClient, Program
from executor_service.v1 import executor_pb2, executor_pb2_grpc
from fairbox.net.channels import open_channel
from fairbox.security import PLAINTEXT
from tests.executor.servers import Server, running


@pytest.fixture(scope="module")
def young() -> Iterator[Server]:
    """Its connections are asked to end after half a second."""
    with running("max_connection_age_s=0.5") as server:
        yield server


async def test_no_call_fails_when_its_connection_comes_of_age(young: Server) -> None:
    """Short calls one after the other, a long one, a stream and a batch, over ten lives of a connection. The short ones
    go through a bare stub: the client would try again."""
    async with ExecutorClient(young.target, security=PLAINTEXT) as client, open_channel(young.target) as channel:
        stub: Any = executor_pb2_grpc.ExecutorServiceStub(channel)
        request = executor_pb2.ExecuteCodeRequest(code="print(1)")

        async def short() -> int:
            ended = 0
            deadline = asyncio.get_running_loop().time() + 5
            while asyncio.get_running_loop().time() < deadline:
                assert (await stub.ExecuteCode(request, timeout=20)).result.stdout.data == b"1\n"
                ended += 1
            return ended

        async def long() -> int:
            result = await client.execute("import time; time.sleep(4); print('slept')")
            assert result.stdout.data == b"slept\n"
            return 1

        async def stream() -> int:
            code = "import time\nfor i in range(8): print(i, flush=True); time.sleep(0.5)"
            items = [item async for item in client.stream(code)]
            last = items[-1]
            assert isinstance(last, ExecutionResult)
            assert last.stdout.data.split() == [str(each).encode() for each in range(8)]
            return 1

        async def batch() -> int:
            found = await client.execute_all([Program(code="import time; time.sleep(1); print(2)")] * 4, max_parallel=1)
            assert all(isinstance(each, ExecutionResult) and each.stdout.data == b"2\n" for each in found)
            return len(found)

        counts = await asyncio.gather(short(), short(), long(), stream(), batch())
    ran = sum(young.status().outcomes.values())
    assert ran == sum(counts)


async def test_a_session_keeps_its_state_over_connections(young: Server) -> None:
    async with ExecutorClient(young.target, security=PLAINTEXT) as client, client.session() as session:
        await session.run("x = 1")
        for _ in range(3):
            await asyncio.sleep(0.8)
            await session.run("x += 1")
        assert (await session.run("print(x)")).stdout.data == b"4\n"
