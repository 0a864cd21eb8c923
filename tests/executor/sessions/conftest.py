"""One server for each level; a client of it, and a session there, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from executor_service import ExecutorClient, Outcome, Session
from tests.executor.levels import EXTREMES, Level
from tests.executor.servers import Server, children


def quiet(server: Server, level: Level) -> bool:
    """Says whether only zygotes, inits and waiting workers are there. A container's processes are not looked for."""
    if level.place is not None and level.place.container:
        return True
    profiles = server.status().profiles
    zygotes = sum(1 if level.landlock else 2 for profile in profiles if profile.ready)
    return len(children(server.pid)) == zygotes + 2 * sum(profile.ready for profile in profiles)


async def value(session: Session, code: str) -> str:
    """Value of an expression in a session."""
    result = await session.run(code)
    assert result.outcome is Outcome.FINISHED, result
    return result.displays[-1].text


@pytest.fixture(scope="session", params=EXTREMES)
def level(request: pytest.FixtureRequest) -> Level:
    found: Level = request.param
    return found


@pytest.fixture(scope="session")
def server(level: Level) -> Iterator[Server]:
    with level.running("max_concurrent=4", "max_queued=500") as started:
        yield started


@pytest.fixture
async def session(executor: ExecutorClient) -> AsyncIterator[Session]:
    async with executor.session(owner="test") as made:
        yield made
