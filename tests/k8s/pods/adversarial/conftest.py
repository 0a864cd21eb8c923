"""The suite's fixtures, with the server in a pod of k8s/ (level landlock) or of the component userns (namespaces)."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from executor_service import ExecutorClient
from tests.executor.adversarial.attempts import MARKER, SECRET
from tests.executor.levels import Level
from tests.executor.servers import Server, processes_with, wait_for
from tests.k8s.pods.conftest import usable
from tests.k8s.pods.deployed import LEVELS, deployed

SETTINGS = (f"FAIRBOX_TEST_SECRET={SECRET}", "EXECUTOR_LIMITER=none", "EXECUTOR_MAX_QUEUED=500")
START_WITHIN_S = 300.0


@pytest.fixture(scope="session", params=LEVELS)
def level(request: pytest.FixtureRequest) -> Level:
    return Level(str(request.param), "user")


@pytest.fixture(scope="session")
def server(level: Level, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The deployment lives in an event loop of its own, in a thread: each test has another loop."""
    usable()
    started: Future[Server] = Future()
    stop = threading.Event()
    thread = threading.Thread(target=_serve, args=(level, tmp_path_factory.mktemp("node"), started, stop))
    thread.start()
    try:
        yield started.result(START_WITHIN_S)
    finally:
        stop.set()
        thread.join(60)


@pytest.fixture
async def executor(server: Server) -> AsyncIterator[ExecutorClient]:
    async with ExecutorClient(server.target) as client:
        yield client
        result = await client.execute("print('as good as before')")
        assert result.stdout.data == b"as good as before\n", result
    wait_for(lambda: processes_with(MARKER) == [])


def _serve(level: Level, folder: Path, started: Future[Server], stop: threading.Event) -> None:
    try:
        asyncio.run(_deployed(level, folder, started, stop))
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _deployed(level: Level, folder: Path, started: Future[Server], stop: threading.Event) -> None:
    async with deployed(folder, *LEVELS[level.name]) as system:
        await system.kubectl.ok("-n", "fairbox-exec", "set", "env", "deployment/executor", *SETTINGS)
        await system.settled()
        pod = system.of("executor")[0]
        # What the suite asks of the process is its number on this machine.
        process = cast("subprocess.Popen[str]", SimpleNamespace(pid=await pod.program_pid()))
        started.set_result(Server(process, f"{pod.address}:50051", f"{pod.address}:50061"))
        while not stop.is_set():
            await asyncio.sleep(0.2)
        assert pod.restarts == 0, "no program has ended the server"
