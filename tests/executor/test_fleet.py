"""One client, several real executors: calls follow the load, state is found where it is, none is lost with a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from executor_service import ExecutionResult, ExecutorClient, Limits, NotFound, Outcome, Program
from tests.executor import repositories
from tests.executor.servers import Server, running, wait_for


@contextlib.contextmanager
def started() -> Iterator[tuple[Server, Server]]:
    """Two servers, which start at the same time."""
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:
            starts = [
                pool.submit(stack.enter_context, running("max_concurrent=2", f"name={name}")) for name in ("one", "two")
            ]
        one, two = (start.result() for start in starts)
        yield one, two


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Server, Server]]:
    with started() as servers:
        yield servers


@pytest.fixture
async def pair(whole: tuple[Server, Server]) -> AsyncIterator[tuple[Server, Server]]:
    """Servers of all tests that end none; idle and without sessions after each."""
    yield whole
    async with client(*whole) as executor:
        for info in await executor.list_sessions():
            await executor.delete_session(info.session_id)
    wait_for(lambda: not any(server.status().running or server.status().sessions for server in whole))


@pytest.fixture
def mortal() -> Iterator[tuple[Server, Server]]:
    """Servers of a test alone, which may end them."""
    with started() as servers:
        yield servers


def client(*servers: Server) -> ExecutorClient:
    return ExecutorClient(",".join(server.target for server in servers))


async def spread(executor: ExecutorClient, count: int) -> Counter[str]:
    """Counts the servers that ran `count` short programs, one after the other."""
    return Counter([(await executor.execute("print(1)")).served_by for _ in range(count)])


async def told(executor: ExecutorClient, *running: int) -> None:
    """Asks the servers how busy they are until they have said that so many programs run there."""
    while sorted(facts.load.running for facts in executor.statistics() if facts.load) != [*running]:
        await executor._calls.fleet.ask(everybody=True)


async def test_calls_follow_the_load(pair: tuple[Server, Server]) -> None:
    """Somebody else keeps one of two executors busy, and half of the calls would have to wait behind that."""
    one, two = pair
    async with ExecutorClient(one.target) as other, client(one, two) as executor:
        hogs = [asyncio.create_task(other.execute("import time; time.sleep(20)")) for _ in range(6)]
        await told(executor, 0, 2)
        # Few enough for what was told to count to the end (`FRESH_S`).
        counts = await asyncio.wait_for(spread(executor, 20), 60)
        assert counts == {"two": 20}
        for hog in hogs:
            hog.cancel()
        await asyncio.gather(*hogs, return_exceptions=True)
        while one.status().running:
            await asyncio.sleep(0.05)
        await asyncio.gather(*(executor.execute("print(1)") for _ in range(20)))
        await told(executor, 0, 0)
        counts = await spread(executor, 60)
        assert min(counts["one"], counts["two"]) >= 15, counts
        assert {facts.load.capacity for facts in executor.statistics() if facts.load} == {2}


async def test_sessions_and_their_branches_are_found_where_they_are(pair: tuple[Server, Server]) -> None:
    async with client(*pair) as executor:
        # At once, since what one server has to do decides where the next is made.
        infos = await asyncio.gather(*(executor.create_session(owner=str(number)) for number in range(6)))
        assert {info.served_by for info in infos} == {"one", "two"}
        for number, info in enumerate(infos):
            assert (await executor.execute(f"x = {number}", session_id=info.session_id)).outcome is Outcome.FINISHED
            (branch,) = await executor.branch_session(info.session_id)
            result = await executor.execute("print(x)", session_id=branch.session_id)
            assert (result.stdout.text, result.served_by) == (f"{number}\n", info.served_by)
        by_server: dict[str, list[str]] = {}
        for info in infos:
            by_server.setdefault(info.served_by, []).append(info.session_id)
        for number, ids in enumerate(by_server.values()):
            programs = [Program(code=f"print({number})", session_id=name) for name in ids]
            for item in await executor.execute_all(programs):
                assert isinstance(item, ExecutionResult)
                assert item.served_by == list(by_server)[number]
        apart = [Program(code="1", session_id=ids[0]) for ids in by_server.values()]
        found = [item for item in await executor.execute_all(apart) if isinstance(item, ExecutionResult)]
        assert [item.served_by for item in found] == list(by_server)
        assert len(await executor.list_sessions()) == 12
    async with client(*pair) as other:
        listed = [info.session_id for info in await other.list_sessions()]
        assert all([await other.delete_session(name) for name in listed])


async def test_a_workspace_is_prepared_once_and_runs_go_there(pair: tuple[Server, Server], tmp_path: Path) -> None:
    folder, commit = repositories.project(tmp_path / "project")
    bundle = repositories.bundle(folder)
    async with client(*pair) as executor:
        workspace = await executor.prepare_workspace(bundle=bundle, commit=commit)
        again = await executor.prepare_workspace(bundle=bundle, commit=commit)
        assert again.workspace_id == workspace.workspace_id
        results = await asyncio.gather(
            *(executor.execute("print(1)", workspace_id=workspace.workspace_id) for _ in range(8))
        )
        assert len({result.served_by for result in results}) == 1


async def test_a_server_that_ends_loses_no_call_and_what_was_in_it_is_not_found(mortal: tuple[Server, Server]) -> None:
    one, two = mortal
    stop = asyncio.Event()

    counts = [0, 0, 0]

    async def caller(executor: ExecutorClient, number: int) -> None:
        while not stop.is_set():
            result = await executor.execute("import time; time.sleep(0.05)", limits=Limits(wall_time_s=30))
            assert result.outcome is Outcome.FINISHED, result
            counts[number] += 1

    async with client(one, two) as executor:
        infos = await asyncio.gather(*(executor.create_session() for _ in range(8)))
        lost = next(info for info in infos if info.served_by == "one")
        async with asyncio.TaskGroup() as callers:
            for number in range(len(counts)):
                callers.create_task(caller(executor, number))
            while min(counts) < 5:
                await asyncio.sleep(0.05)
            one.process.send_signal(signal.SIGTERM)
            while one.process.poll() is None:
                await asyncio.sleep(0.05)
            before = list(counts)
            while any(count < had + 5 for count, had in zip(counts, before, strict=True)):
                await asyncio.sleep(0.05)
            stop.set()
        executor._calls.fleet._list([two.target])
        with pytest.raises(NotFound, match="is gone"):
            await executor.execute("print(1)", session_id=lost.session_id)


async def test_a_name_stands_for_every_address_of_it(pair: tuple[Server, Server]) -> None:
    port = pair[0].target.rpartition(":")[2]
    async with ExecutorClient(f"dns:///localhost:{port}") as executor:
        assert [facts.address for facts in executor.statistics()] == [f"127.0.0.1:{port}"]
        assert (await executor.execute("print(1)")).served_by == "one"
