"""Connections that the cluster's network plugin lets through under the applied policies."""

from __future__ import annotations

import json

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LIMITER = "limiter.fairbox.svc.cluster.local:50052"
EXECUTOR = "executor.fairbox-exec.svc.cluster.local:50051"
HEADLESS = "executor-headless.fairbox-exec.svc.cluster.local:50051"
LOOPBACK = ["127.0.0.1:50051", "127.0.0.1:50061"]
KNOCK = """
import json, socket, sys
def reaches(host, port):
    try: socket.create_connection((host, port), timeout=3).close()
    except OSError as error: return type(error).__name__
    return "reached"
print(json.dumps({each: reaches(each.rpartition(":")[0], int(each.rpartition(":")[2])) for each in sys.argv[1:]}))
"""
PROGRAM = """
import asyncio, sys
from executor_service import ExecutorClient, Limits
async def main():
    async with ExecutorClient(sys.argv[1]) as executor:
        print((await executor.execute(sys.argv[2], args=sys.argv[3:], limits=Limits(wall_time_s=120))).stdout.text)
asyncio.run(main())
"""


def reached(printed: str) -> set[str]:
    """Addresses that a KNOCK reached."""
    found: dict[str, str] = json.loads(printed.strip().splitlines()[-1])
    return {address for address, answer in found.items() if answer == "reached"}


def places(cluster: Cluster) -> list[str]:
    """Every port of every tier, by the addresses of its pods."""
    limiters = [pod["status"]["podIP"] for pod in cluster.ready("limiter")]
    executors = [pod["status"]["podIP"] for pod in cluster.ready("executor")]
    ports = [f"{address}:{port}" for address in limiters for port in (50052, 50062)]
    return [*ports, *(f"{address}:{port}" for address in executors for port in (50051, 50061))]


def test_a_client_reaches_both_services_and_nothing_else(cluster: Cluster) -> None:
    health = [place for place in places(cluster) if place.endswith(("50061", "50062"))]
    cluster.start("client", ["python", "-c", KNOCK, LIMITER, EXECUTOR, HEADLESS, *health])
    assert reached(cluster.finish("client")) == {LIMITER, EXECUTOR, HEADLESS}


def test_a_pod_without_the_label_reaches_nothing(cluster: Cluster) -> None:
    cluster.start("stranger", ["python", "-c", KNOCK, LIMITER, EXECUTOR, *places(cluster)], labels={"app": "stranger"})
    assert reached(cluster.finish("stranger")) == set()


def test_a_client_of_another_namespace_reaches_nothing(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "fairbox-elsewhere")
    try:
        cluster.start("foreign", ["python", "-c", KNOCK, *places(cluster)], namespace="fairbox-elsewhere")
        assert reached(cluster.finish("foreign", namespace="fairbox-elsewhere")) == set()
    finally:
        cluster.kubectl("delete", "namespace", "fairbox-elsewhere", within_s=300)


def test_an_executor_reaches_the_limiter_and_no_other_pod(cluster: Cluster) -> None:
    pod = cluster.ready("executor")[0]
    own = pod["status"]["podIP"]
    others = [place for place in places(cluster) if not place.startswith(f"{own}:")]
    limiters = {f"{each['status']['podIP']}:50052" for each in cluster.ready("limiter")}
    found = reached(cluster.execute(pod, "python", "-c", KNOCK, LIMITER, *others))
    assert found == {LIMITER, *limiters}


def test_a_program_reaches_nothing_at_all(cluster: Cluster) -> None:
    server = cluster.get("default", "service", "kubernetes")["spec"]["clusterIP"]
    at = [LIMITER, *places(cluster), *LOOPBACK, f"{server}:443"]
    cluster.start("program", ["python", "-c", PROGRAM, EXECUTOR, KNOCK, *at])
    assert reached(cluster.finish("program")) == set()
