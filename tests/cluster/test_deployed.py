"""The deployment runs: it is accepted twice, becomes ready, has the rights it asked for, and rolls out."""

from __future__ import annotations

import json

import pytest

from tests.cluster.cluster import APPLIED, NAMESPACE, Cluster, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ALWAYS_SENT = "poddisruptionbudget.policy/executor"
"""kubectl says `configured` of it each time: the patch strategy of its selector is `replace`, so its patch is never
empty."""
LEVEL = """
import grpc
from executor_service.v1 import executor_pb2 as pb, executor_pb2_grpc as rpc
status = rpc.ExecutorServiceStub(grpc.insecure_channel("127.0.0.1:50051")).GetStatus(pb.GetStatusRequest(), timeout=10)
print(pb.IsolationLevel.Name(status.isolation_level), status.served_by)
"""
WRITE = """
import errno, sys
for path in sys.argv[1:]:
    try: open(path, "w").close()
    except OSError as error: print(errno.errorcode[error.errno])
    else: print("written")
"""


def test_applying_again_changes_nothing(cluster: Cluster) -> None:
    again = cluster.attempt("apply", *APPLIED)
    assert again.returncode == 0, again.stderr
    assert not again.stderr
    for line in again.stdout.splitlines():
        assert line.endswith(" unchanged") or line.startswith(ALWAYS_SENT), line
    assert cluster.attempt("diff", *APPLIED).returncode == 0
    cluster.settle()


def test_the_services_lead_to_the_pods_that_are_ready(cluster: Cluster) -> None:
    for tier, service in (("limiter", "limiter"), ("executor", "executor"), ("executor", "executor-headless")):

        def leads(tier: str = tier, service: str = service) -> bool:
            addresses = {pod["status"]["podIP"] for pod in cluster.ready(tier)}
            return endpoints(cluster, NAMESPACE[tier], service) == addresses

        until(leads, f"{service} leads elsewhere", 30)


def endpoints(cluster: Cluster, namespace: str, service: str) -> set[str]:
    """Addresses that a Service leads to."""
    slices = cluster.get(namespace, "endpointslices", "-l", f"kubernetes.io/service-name={service}")["items"]
    found = [endpoint for each in slices for endpoint in each.get("endpoints") or ()]
    return {address for each in found if each["conditions"]["ready"] for address in each["addresses"]}


@pytest.mark.parametrize("tier", NAMESPACE)
def test_pods_have_the_rights_that_were_applied_and_no_more(tier: str, cluster: Cluster) -> None:
    for pod in cluster.ready(tier):
        lines = cluster.execute(pod, "cat", "/proc/1/status").splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert set(status["Uid"].split()) == {"10001"}
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        paths = [f"{folder}/written" for folder in ("", "/opt/venv", "/etc", "/usr")]
        assert set(cluster.execute(pod, "python", "-c", WRITE, *paths).split()) == {"EROFS"}


def test_executors_offer_the_level_that_their_rights_allow(cluster: Cluster) -> None:
    for pod in cluster.ready("executor"):
        level, served_by = cluster.execute(pod, "python", "-c", LEVEL).split()
        assert level == "ISOLATION_LEVEL_LANDLOCK"
        assert served_by == f"{pod['metadata']['name']}:50051"


def test_a_rollout_completes_through_all_three_tiers(cluster: Cluster) -> None:
    """`fairbox rollout` as its template says, with fewer questions: the small model, the limit, the sandbox."""
    job = cluster.template("first")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "ROLLOUT_N", "value": "4"})
    container |= {"command": ["sh", "-c"], "args": ['fairbox rollout >&2 && cat "$ROLLOUT_OUT"/*.jsonl']}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(job))
    lines = cluster.finish("first", within_s=600).splitlines()
    rows = [row for row in (json.loads(line) for line in lines if line.startswith("{")) if "tool_calls" in row]
    assert len(rows) == 4
    assert [row["cause"] for row in rows if row["masked"]] == []
    assert [call for row in rows for call in row["tool_calls"]], "no program ran"
