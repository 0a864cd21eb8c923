"""The three tiers from their images and manifests: what their pods may do, and a rollout through all of them."""

from __future__ import annotations

import json

import grpc
import pytest

from executor_service.v1 import executor_pb2 as pb
from executor_service.v1 import executor_pb2_grpc
from tests.k8s.pods.deployed import LEVELS, System

pytestmark = [pytest.mark.pods, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_everything_becomes_ready_and_kubectl_sees_it(system: System) -> None:
    assert [len(system.of(tier)) for tier in ("limiter", "executor")] == [1, 2]
    for namespace, name in (("fairbox", "limiter"), ("fairbox-exec", "executor")):
        words = ("-n", namespace, "rollout", "status", f"deployment/{name}", "--timeout=60s")
        assert "successfully rolled out" in (await system.kubectl.ok(*words)).out


async def test_pods_have_the_rights_that_were_applied_and_no_more(system: System, level: str) -> None:
    for tier in ("limiter", "executor"):
        for pod in system.of(tier):
            status = dict(
                line.split(":\t", 1)
                for line in (await pod.execute("cat", "/proc/1/status")).splitlines()
                if ":\t" in line
            )
            assert set(status["Uid"].split()) == {"10001"}, tier
            assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
            assert status["NoNewPrivs"] == "1"
            relaxed = tier == "executor" and level == "namespaces"
            assert status["Seccomp"] == ("0" if relaxed else "2")
            mapping = (await pod.execute("cat", "/proc/1/uid_map")).split()
            assert (mapping == ["0", "0", "4294967295"]) != relaxed
            for path in ("/", "/opt/venv", "/etc", "/usr"):
                with pytest.raises(Exception, match="Read-only file system"):
                    await pod.execute("touch", f"{path}/written")


async def test_executors_offer_the_level_that_their_rights_allow(system: System, level: str) -> None:
    for pod in system.of("executor"):
        with grpc.insecure_channel(f"{pod.address}:50051") as channel:
            status = executor_pb2_grpc.ExecutorServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=10)
        assert status.isolation_level == getattr(pb, f"ISOLATION_LEVEL_{level.upper()}")
        assert status.served_by == f"{pod.name}:50051"


async def test_names_lead_where_services_say(system: System) -> None:
    pods = {pod.address for pod in system.of("executor")}
    table = system.node.names.table
    assert set(table["executor-headless.fairbox-exec.svc.cluster.local"]) == pods
    (virtual,) = table["executor.fairbox-exec.svc.cluster.local"]
    assert virtual not in pods
    assert len(table["limiter.fairbox.svc.cluster.local"]) == 1


async def test_a_rollout_completes_through_all_three_tiers(system: System) -> None:
    """`fairbox rollout` as its template says, with fewer questions: the small model, the limit, the sandbox."""
    words = ("-n", "fairbox", "create", "job", "first", "--from=cronjob/rollout", "--dry-run=client", "-o", "json")
    job = json.loads((await system.kubectl.ok(*words)).out)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["env"] += [{"name": "ROLLOUT_N", "value": "4"}]
    await system.kubectl.ok("apply", "-f", "-", stdin=json.dumps(job))
    system.read()
    pod = await system.node.finished("first", within_s=400)
    assert pod.exit_code == 0, pod.ended_logs
    (dump,) = system.node.volumes.claim("fairbox", "rollout-out").glob(f"{pod.name}/*.jsonl")
    rows = [json.loads(line) for line in dump.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 4
    assert [row["cause"] for row in rows if row["masked"]] == []
    outcomes = [call["outcome"] for row in rows for call in row["tool_calls"]]
    assert outcomes, "no program ran"
