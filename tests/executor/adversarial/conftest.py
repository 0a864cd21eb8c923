"""One server for each level; a client of it for each test; after each test the server must be as good as before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import ExecutorClient
from tests.executor.adversarial.attempts import MARKER, SECRET
from tests.executor.levels import LEVELS, Level
from tests.executor.servers import Server, processes_with, wait_for


@pytest.fixture(scope="session", params=LEVELS, ids=str)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="session")
def server(level: Level) -> Iterator[Server]:
    with level.running("max_concurrent=2", "max_queued=500", env={"FAIRBOX_TEST_SECRET": SECRET}) as started:
        yield started


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(server.target) as client:
        yield client
        result = await client.execute("print('as good as before')")
        assert result.stdout.data == b"as good as before\n", result
    wait_for(lambda: processes_with(MARKER) == [])
