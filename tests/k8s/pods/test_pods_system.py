"""The three tiers from their images and manifests: what their pods may do, and a rollout through all of them."""

from __future__ import annotations

import json

import pytest

from tests.k8s.pods.deployed import System

pytestmark = [pytest.mark.pods, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

CLIENT = {"fairbox.dev/client": "true"}


async def test_everything_becomes_ready_and_kubectl_sees_it(system: System) -> None:
    assert [len(system.of(tier)) for tier in ("limiter", "executor")] == [1, 2]
    for namespace, name in (("fairbox", "limiter"), ("fairbox-exec", "executor")):
        words = ("-n", namespace, "rollout", "status", f"deployment/{name}", "--timeout=60s")
        assert "successfully rolled out" in (await system.kubectl.ok(*words)).out
    again = await system.kubectl.ok("apply", "-f", "k8s/")
    assert not [line for line in again.lines if "created" in line]


async def test_pods_have_the_rights_that_were_applied_and_no_more(system: System) -> None:
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
            assert status["Seccomp"] == ("2" if tier == "limiter" else "0")
            mapping = (await pod.execute("cat", "/proc/1/uid_map")).split()
            assert (mapping == ["0", "0", "4294967295"]) == (tier == "limiter")
            for path in ("/", "/opt/venv", "/etc", "/usr"):
                with pytest.raises(Exception, match="Read-only file system"):
                    await pod.execute("touch", f"{path}/written")


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
    assert "4 trajectories" in pod.ended_logs or pod.ended_logs
    assert sum(int(row.get("tool_calls", row.get("num_tool_calls", 0)) or 0) for row in rows) > 0, rows[0].keys()
