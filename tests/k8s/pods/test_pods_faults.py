"""Updates and deaths under load, seen by a client in a pod: no call fails by an update, and the limit holds always."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.k8s.pods.conftest import usable
from tests.k8s.pods.deployed import LEVELS, System, deployed
from tests.k8s.pods.runs import Run, by_server, most_at_once, read

pytestmark = [pytest.mark.pods, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

LIMIT = 6
SOURCE = Path(__file__).with_name("load.py")
LONGEST_S = 300
CLIENT = {"fairbox.dev/client": "true"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """k8s/, with a limit that the load reaches."""
    usable()
    async with deployed(tmp_path_factory.mktemp("node"), *LEVELS["landlock"]) as started:
        limit = f"LIMITER_BUCKETS__CODE__MAX_IN_FLIGHT={LIMIT}"
        await started.kubectl.ok("-n", "fairbox", "set", "env", "deployment/limiter", limit)
        await started.settled()
        yield started


class Load:
    """A client pod that is at work."""

    def __init__(self, system: System, name: str) -> None:
        self.system, self.name = system, name

    async def begun(self, *more: str, tasks: int = 16) -> Load:
        words = ["python", "-c", SOURCE.read_text(encoding="utf-8"), str(LONGEST_S), str(tasks), *more]
        await self.system.job(self.name, labels=CLIENT, words=words)
        deadline = time.monotonic() + 60
        while not any(run.end for run in read(await self._log())):
            assert time.monotonic() < deadline, await self._log()
            await asyncio.sleep(0.2)
        return self

    async def _log(self) -> str:
        pods = [pod for pod in [*self.system.node.pods, *self.system.node.ended] if pod.workload.name == self.name]
        return await pods[0].logs() if pods else ""

    async def ended(self, after_s: float) -> list[Run]:
        """What was done, when it has been at work for so much longer."""
        await asyncio.sleep(after_s)
        await self.system.of(self.name)[0].kill("TERM")
        pod = await self.system.node.finished(self.name, within_s=150)
        assert pod.exit_code == 0, pod.ended_logs[-3000:]
        return read(pod.ended_logs)


async def held(system: System) -> str:
    """What the limiter holds and queues, asked inside its own pod, where the admin port is."""
    program = (
        "import grpc; from limiter.v1 import limiter_pb2 as pb, limiter_pb2_grpc as rpc; "
        "s = rpc.LimiterAdminServiceStub(grpc.insecure_channel('127.0.0.1:50053')); "
        "b = s.GetStatus(pb.GetStatusRequest(), timeout=10).buckets[0]; print(b.held, b.queued)"
    )
    return (await system.of("limiter")[0].execute("python", "-c", program)).strip()


async def nothing_held(system: System, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while (now := await held(system)) != "0 0":
        assert time.monotonic() < deadline, f"held and queued: {now}"
        await asyncio.sleep(0.5)


async def test_a_rolling_restart_under_load_fails_no_call(system: System) -> None:
    load = await Load(system, "restart").begun()
    before = {pod.name for pod in system.of("executor")}
    await system.kubectl.ok("-n", "fairbox-exec", "rollout", "restart", "deployment/executor")
    await system.settled()
    after = {pod.name for pod in system.of("executor")}
    assert not before & after
    runs = await load.ended(8)
    served = by_server(runs)
    print(f"\nrolling restart: {len(runs)} calls, served {dict(served)}")  # noqa: T201
    assert [run.error for run in runs if run.error] == []
    assert len(served) == 4, "old and new ones, each of them"
    assert min(served.values()) > 5
    assert most_at_once(runs) <= LIMIT
    await nothing_held(system)


async def test_an_executor_that_is_killed_breaks_no_limit_and_loses_only_its_own(system: System) -> None:
    load = await Load(system, "executor-killed").begun("--stream")
    await asyncio.sleep(5)
    (victim, _) = system.of("executor")
    name = f"{victim.name}:50051"
    await victim.kill()
    killed = time.time()
    runs = await load.ended(20)
    await system.settled()
    assert victim.restarts == 1
    failed = [run for run in runs if run.error]
    # What ran there is lost, and told as that; everything else was done by the other one, or by the same one again.
    assert len(failed) <= 8, [run.error for run in failed]
    assert all(run.asked <= killed + 3 for run in failed), [(run.asked - killed, run.error) for run in failed]
    assert len([run for run in runs if run.end and run.end > killed + 5]) > 20
    assert by_server(runs)[name] > 0
    assert most_at_once(runs, [killed]) <= LIMIT
    assert most_at_once(runs, [killed]) >= LIMIT - 1, "the load was enough to reach it"
    await nothing_held(system)


async def test_a_limiter_that_is_killed_breaks_no_limit_and_loses_nothing(system: System) -> None:
    load = await Load(system, "limiter-killed").begun("--stream", "--again")
    killed = []
    for _ in range(2):
        await asyncio.sleep(5)
        await system.of("limiter")[0].kill()
        killed.append(time.time())
    runs = await load.ended(25)
    await system.settled()
    assert most_at_once(runs, killed) <= LIMIT
    assert [run.error for run in runs if run.error] == []
    assert len([run for run in runs if run.end and run.end > killed[-1] + 12]) > 20, "it goes on"
    await nothing_held(system)


async def test_an_executor_below_its_least_isolation_is_never_ready_and_replaces_none(system: System) -> None:
    """Rights of the level landlock, and a setting that wants more: the update stops, and those before go on."""
    before = {pod.name for pod in system.of("executor")}
    words = ("-n", "fairbox-exec", "set", "env", "deployment/executor")
    await system.kubectl.ok(*words, "EXECUTOR_MIN_ISOLATION=namespaces")
    deadline = time.monotonic() + 90
    while not any(pod.restarts for pod in system.of("executor") if pod.name not in before):
        assert time.monotonic() < deadline, "it never ended at start"
        await asyncio.sleep(0.2)
    (refused,) = [pod for pod in system.of("executor") if pod.name not in before]
    assert not refused.ready
    assert {pod.name for pod in system.of("executor") if pod.ready} == before
    table = system.node.names.table["executor-headless.fairbox-exec.svc.cluster.local"]
    assert refused.address not in table
    while "isolation level" not in (said := await refused.logs()):
        assert time.monotonic() < deadline, said
        await asyncio.sleep(0.2)
    await system.kubectl.ok(*words, "EXECUTOR_MIN_ISOLATION=landlock")
    await system.settled()
