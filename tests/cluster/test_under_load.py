"""Updates and deaths under load, seen by a client in a pod: no call fails by an update, and the limit holds always.

The clocks of the nodes have to agree to a few milliseconds: programs tell when they ran.
"""

from __future__ import annotations

import time

import pytest

from tests.cluster.cluster import Cluster, Document, until
from tests.cluster.test_deployed import endpoints
from tests.k8s.manifests import ROOT
from tests.k8s.runs import Run, by_server, most_at_once, read

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

LIMIT = 6
LONGEST_S = 600
HELD = """
import grpc
from limiter.v1 import limiter_pb2 as pb, limiter_pb2_grpc as rpc
stub = rpc.LimiterAdminServiceStub(grpc.insecure_channel("127.0.0.1:50053"))
bucket = stub.GetStatus(pb.GetStatusRequest(), timeout=10).buckets[0]
print(bucket.held, bucket.queued)
"""


@pytest.fixture(scope="module", autouse=True)
def _a_limit_that_the_load_reaches(cluster: Cluster) -> None:
    cluster.set_env("limiter", f"LIMITER_BUCKETS__CODE__MAX_IN_FLIGHT={LIMIT}")
    cluster.settle()


class Load:
    """A client pod that is at work."""

    def __init__(self, cluster: Cluster, name: str, *more: str, tasks: int = 16) -> None:
        self.cluster, self.name = cluster, name
        code = (ROOT / "tests" / "k8s" / "load.py").read_text(encoding="utf-8")
        cluster.start(name, ["python", "-c", code, str(LONGEST_S), str(tasks), *more])
        until(lambda: any(run.end for run in read(cluster.logs(name))), "no program runs", 120)

    def end(self, after_s: float) -> list[Run]:
        """Lets it work for so much longer, ends it, and returns what it did."""
        time.sleep(after_s)
        self.cluster.kubectl("-n", "fairbox", "exec", f"job/{self.name}", "--", "sh", "-c", "kill -TERM 1")
        return read(self.cluster.finish(self.name, within_s=180))


def nothing_held(cluster: Cluster) -> None:
    """Waits until the limiter holds and queues nothing, as it says inside its own pod, where the admin port is."""
    (limiter,) = cluster.ready("limiter")
    until(lambda: cluster.execute(limiter, "python", "-c", HELD).split() == ["0", "0"], "something is held", 60)


def kill(cluster: Cluster, pod: Document) -> float:
    """Ends a pod without its grace period, and returns when that began; the Deployment makes another."""
    meta = pod["metadata"]
    began = time.time()
    cluster.kubectl("-n", meta["namespace"], "delete", "pod", meta["name"], "--grace-period=0", "--force")
    return began


def test_a_rolling_restart_under_load_fails_no_call(cluster: Cluster) -> None:
    before = {pod["metadata"]["name"] for pod in cluster.ready("executor")}
    load = Load(cluster, "restart")
    cluster.kubectl("-n", "fairbox-exec", "rollout", "restart", "deployment/executor")
    cluster.settle()
    after = {pod["metadata"]["name"] for pod in cluster.ready("executor")}
    assert not before & after
    runs = load.end(10)
    assert [run.error for run in runs if run.error] == []
    assert set(by_server(runs)) >= {f"{name}:50051" for name in before | after}, "old and new ones, each of them"
    assert most_at_once(runs) <= LIMIT
    nothing_held(cluster)


def test_an_executor_that_is_killed_breaks_no_limit_and_loses_only_its_own(cluster: Cluster) -> None:
    load = Load(cluster, "executor-killed", "--stream")
    time.sleep(5)
    killed = kill(cluster, cluster.ready("executor")[0])
    runs = load.end(30)
    cluster.settle()
    failed = [run for run in runs if run.error]
    # What ran there is lost, and reported as lost; everything else is done by the others.
    assert len(failed) <= 8, [run.error for run in failed]
    assert len([run for run in runs if run.end and run.end > killed + 10]) > 20
    assert LIMIT - 1 <= most_at_once(runs, [killed]) <= LIMIT, "the load was enough to reach it, and no more"
    nothing_held(cluster)


def test_a_limiter_that_is_killed_breaks_no_limit_and_loses_nothing(cluster: Cluster) -> None:
    load = Load(cluster, "limiter-killed", "--stream", "--again")
    killed = []
    for _ in range(2):
        time.sleep(5)
        killed.append(kill(cluster, cluster.ready("limiter")[0]))
        cluster.settle()
    healed = time.time()
    runs = load.end(20)
    assert most_at_once(runs, killed) <= LIMIT
    assert [run.error for run in runs if run.error] == []
    assert len([run for run in runs if run.end and run.end > healed]) > 20, "it goes on"
    nothing_held(cluster)


def test_an_executor_below_its_least_isolation_is_never_ready_and_replaces_none(cluster: Cluster) -> None:
    """Rights of the level landlock, and a setting that wants more: the update stops, and those before go on."""
    before = {pod["metadata"]["name"] for pod in cluster.ready("executor")}
    cluster.set_env("executor", "EXECUTOR_MIN_ISOLATION=namespaces")
    try:
        until(lambda: any(_restarts(pod) for pod in _others(cluster, before)), "it never ended at start", 180)
        (refused,) = _others(cluster, before)
        assert {pod["metadata"]["name"] for pod in cluster.ready("executor")} == before
        assert refused["status"]["podIP"] not in endpoints(cluster, "fairbox-exec", "executor-headless")
        said = cluster.kubectl("-n", "fairbox-exec", "logs", "--previous", refused["metadata"]["name"])
        assert "isolation level" in said
    finally:
        cluster.set_env("executor", "EXECUTOR_MIN_ISOLATION=landlock")
        cluster.settle()


def test_no_probe_ended_a_pod_that_was_only_busy(cluster: Cluster) -> None:
    pods = [*cluster.ready("limiter"), *cluster.ready("executor")]
    assert [pod["metadata"]["name"] for pod in pods if _restarts(pod)] == []


def _others(cluster: Cluster, before: set[str]) -> list[Document]:
    return [pod for pod in cluster.pods("executor") if pod["metadata"]["name"] not in before]


def _restarts(pod: Document) -> int:
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
