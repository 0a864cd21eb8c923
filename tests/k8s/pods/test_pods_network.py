"""Who reaches whom: policies as they were applied, enforced by the pods' own networks."""

from __future__ import annotations

import json

import pytest

from executor_service import ExecutorClient, Limits
from tests.k8s.pods.deployed import LEVELS, System

pytestmark = [pytest.mark.pods, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

CLIENT = {"fairbox.dev/client": "true"}
KNOCK = """
import json, socket, sys
def reaches(host, port):
    try: socket.create_connection((host, port), timeout=2).close()
    except OSError as error: return type(error).__name__
    return "reached"
print(json.dumps({each: reaches(each.rpartition(":")[0], int(each.rpartition(":")[2])) for each in sys.argv[1:]}))
"""


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


LIMITER = "limiter.fairbox.svc.cluster.local:50052"
EXECUTOR = "executor.fairbox-exec.svc.cluster.local:50051"
HEADLESS = "executor-headless.fairbox-exec.svc.cluster.local:50051"


async def knocked(
    system: System, name: str, *, namespace: str = "fairbox", labels: dict[str, str], at: list[str]
) -> dict[str, str]:
    """What a pod with these labels reaches."""
    await system.job(name, namespace, labels=labels, words=["python", "-c", KNOCK, *at])
    pod = await system.node.finished(name, within_s=60)
    assert pod.exit_code == 0, pod.ended_logs
    found: dict[str, str] = json.loads(pod.ended_logs.strip().splitlines()[-1])
    return found


def places(system: System) -> list[str]:
    """Every port of every service, by the addresses of the pods."""
    limiter, executors = system.of("limiter")[0], system.of("executor")
    health = [f"{limiter.address}:50062", *(f"{pod.address}:50061" for pod in executors)]
    return [f"{limiter.address}:50052", *(f"{pod.address}:50051" for pod in executors), *health]


async def test_a_client_reaches_both_services_and_nothing_else(system: System) -> None:
    health = [place for place in places(system) if place.endswith(("50061", "50062"))]
    found = await knocked(system, "client", labels=CLIENT, at=[LIMITER, EXECUTOR, HEADLESS, *health])
    assert {found[each] for each in (LIMITER, EXECUTOR, HEADLESS)} == {"reached"}
    assert {found[each] for each in health} == {"TimeoutError"}, "a kubelet asks there, and nobody else"


async def test_a_pod_without_the_label_reaches_nothing(system: System) -> None:
    found = await knocked(system, "stranger", labels={}, at=[LIMITER, *places(system)])
    assert found.pop(LIMITER) == "gaierror", "not even the name server"
    assert set(found.values()) == {"TimeoutError"}


async def test_a_client_of_another_namespace_reaches_nothing(system: System) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}
    await system.kubectl.ok("apply", "-f", "-", stdin=json.dumps(namespace))
    found = await knocked(system, "foreign", namespace="elsewhere", labels=CLIENT, at=places(system))
    assert set(found.values()) == {"TimeoutError"}


async def test_an_executor_reaches_the_limiter_and_no_other_pod(system: System) -> None:
    pod, other = system.of("executor")
    limiter = system.of("limiter")[0]
    at = [LIMITER, f"{limiter.address}:50062", f"{other.address}:50051", f"{other.address}:50061"]
    found = json.loads(await pod.execute("python", "-c", KNOCK, *at, f"{system.node.bridge.node}:6443"))
    assert found.pop(LIMITER) == "reached"
    assert set(found.values()) == {"TimeoutError"}


async def test_a_program_reaches_nothing_at_all(system: System, level: str) -> None:
    at = [LIMITER, *places(system), f"{system.node.bridge.node}:6443", "127.0.0.1:50051", "127.0.0.1:50061"]
    async with ExecutorClient(f"{system.of('executor')[0].address}:50051") as executor:
        result = await executor.execute(KNOCK, args=at, limits=Limits(wall_time_s=60))
    assert result.cause.value == "POLICY", result
    found: dict[str, str] = json.loads(result.stdout.text)
    assert "reached" not in found.values(), found
    # There is no network to send it to, or no right to: nothing had to be waited for.
    assert {found[each] for each in at[1:-2]} == {"OSError" if level == "namespaces" else "PermissionError"}
