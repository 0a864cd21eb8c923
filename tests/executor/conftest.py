"""One real server for most tests; a client of it for each."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import ExecutorClient
from tests.executor.gateways import GatewayServer, gateway
from tests.executor.servers import Server, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running("max_concurrent=4", "max_queued=500", "languages=bash,python,text") as started:
        yield started


@pytest.fixture(scope="session")
def compiling() -> Iterator[Server]:
    """A server that compiles C and C++ if their compilers are here."""
    compiled = [name for name, compiler in (("c", "gcc"), ("cpp", "g++")) if shutil.which(compiler)]
    with running("max_concurrent=4", f"languages={','.join(('bash', 'python', *compiled))}") as started:
        yield started


@pytest.fixture(scope="session")
def gateway_server() -> Iterator[GatewayServer]:
    with gateway("max_concurrent=4", "gateway_queue_timeout_s=100") as started:
        yield started


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(server.target) as client:
        yield client
