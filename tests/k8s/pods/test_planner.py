"""The decisions of the rig, without podman: what an applied object becomes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.k8s.manifests import load_all
from tests.k8s.pods.containers import Probe, plan_container, plan_sandbox
from tests.k8s.pods.deployments import Decision, PodFacts, decide
from tests.k8s.pods.environment import environment, expand
from tests.k8s.pods.nameserver import answer
from tests.k8s.pods.objects import Objects, Workload, selects
from tests.k8s.pods.policies import ruleset
from tests.k8s.pods.probes import ProbeState
from tests.k8s.pods.quantities import quantity, share
from tests.k8s.pods.runs import Run, most_at_once
from tests.k8s.pods.seccomp import runtime_default
from tests.k8s.pods.services import Endpoint, names, virtual_addresses, virtual_services

FIELDS = {
    "metadata.name": "executor-1",
    "metadata.namespace": "fairbox-exec",
    "metadata.uid": "u",
    "status.podIP": "ip",
}


def pod(**more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "image", **more.pop("container", {})}
    return {"containers": [container], **more}


def options(spec: dict[str, Any], index: int = 3) -> list[str]:
    return list(plan_container(spec, index=index, environment={}, seccomp_folder="/profiles").options)


@pytest.mark.parametrize(
    ("text", "number"), [("512Mi", 2**29), ("250m", 0.25), ("2", 2), (3, 3), ("1k", 1000), ("14Gi", 14 * 2**30)]
)
def test_quantities(text: str | int, number: float) -> None:
    assert quantity(text) == number


def test_shares_are_rounded_as_updates_need_it() -> None:
    assert share("25%", 2, up=True) == 1
    assert share("25%", 2, up=False) == 0
    assert share(3, 2, up=True) == 3


def test_env_wins_over_env_from_and_may_name_what_stands_before() -> None:
    objects = Objects(
        [
            {"kind": "ConfigMap", "metadata": {"namespace": "n", "name": "c"}, "data": {"A": "map", "B": "map"}},
            {"kind": "Secret", "metadata": {"namespace": "n", "name": "s"}, "data": {"token": "aHVzaA=="}},
        ]
    )
    container = {
        "envFrom": [{"configMapRef": {"name": "c"}}, {"configMapRef": {"name": "none", "optional": True}}],
        "env": [
            {"name": "A", "value": "env"},
            {"name": "C", "value": "$(A)/$(B)/$(LATER)/$$(A)"},
            {"name": "LATER", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }
    assert environment(container, "n", objects, FIELDS) == {
        "A": "env",
        "B": "map",
        "C": "env/map/$(LATER)/$(A)",
        "LATER": "hush",
        "ME": "executor-1",
    }
    with pytest.raises(ValueError, match="ConfigMap other/c does not exist"):
        environment(container, "other", objects, FIELDS)
    assert expand("$(X)", {}) == "$(X)"


def test_a_restricted_pod_becomes_what_a_kubelet_would_make_of_it() -> None:
    spec = pod(
        securityContext={"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001},
        container={
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "resources": {"limits": {"memory": "512Mi"}},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        },
        volumes=[{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}],
    )
    found = options(spec)
    for pair in (
        ("--user", "10001:10001"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--security-opt", "seccomp=/profiles/runtime-default.json"),
        ("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={64 << 20}"),
    ):
        assert pair in pairwise(found), pair
    assert {"--read-only", "--read-only-tmpfs=false", f"--memory={512 << 20}"} <= set(found)
    assert "unmask=ALL" not in found
    assert plan_sandbox(spec, 3) == ["--network", "none"]


def test_user_namespaces_do_not_overlap() -> None:
    first, second = (plan_sandbox(pod(hostUsers=False), index) for index in (0, 1))
    assert first[first.index("--uidmap") + 1] == "0:1000000:65536"
    assert second[second.index("--gidmap") + 1] == "0:1065536:65536"
    assert "unmask=ALL" in options(pod(container={"securityContext": {"procMount": "Unmasked"}}))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (pod(hostNetwork=True), "a pod has hostNetwork"),
        (pod(container={"securityContext": {"privileged": True}}), "privileged"),
        (pod(securityContext={"runAsNonRoot": True}), "runAsNonRoot is true, and runAsUser is not set"),
        (pod(container={"livenessProbe": {"exec": {"command": ["true"]}}}), "only gRPC probes"),
        (pod(container={"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}), "lifecycle has a hook"),
        (pod(container={"securityContext": {"seccompProfile": {"type": "Odd"}}}), "must be RuntimeDefault"),
    ],
)
def test_what_is_not_understood_is_never_passed_over(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        options(spec)


def test_every_pod_of_k8s_is_understood() -> None:
    objects = Objects(load_all())
    planned = [workload.name for workload in objects.workloads() if not workload.lacking()]
    assert planned == ["limiter", "executor"]
    for workload in objects.workloads():
        (container,) = workload.template["spec"]["containers"]
        variables = environment(container, workload.namespace, objects, FIELDS)
        plan = plan_container(workload.template["spec"], index=0, environment=variables, seccomp_folder="/s")
        assert plan.readiness is not None
        assert plan.restart
    (executor,) = [workload for workload in objects.workloads() if workload.name == "executor"]
    assert executor.replicas == 2, "the autoscaler's least"


def deployment(replicas: int = 2, **strategy: Any) -> Workload:
    return Workload("Deployment", "n", "d", replicas, {"spec": {"containers": []}, "v": 2}, {"strategy": strategy})


def pods(text: str, workload: Workload) -> list[PodFacts]:
    """`o` old, `n` new; capital: available; followed by `-`: ending."""
    found = []
    for number, letter in enumerate(text.replace("-", "")):
        ending = text[text.index(letter) + 1 : text.index(letter) + 2] == "-"
        revision = workload.revision if letter.lower() == "n" else "old"
        found.append(PodFacts(f"{letter}{number}", revision, letter.isupper(), ending))
    return found


@pytest.mark.parametrize(
    ("there", "decision"),
    [
        ("", Decision(start=2)),
        ("OO", Decision(start=1)),
        ("OOn", Decision()),
        ("OON", Decision(end=("O0",))),
        ("ON", Decision(start=1)),
        ("NN", Decision()),
        ("NNn", Decision(end=("n2",))),
        ("oO", Decision(start=1, end=("o0",))),
    ],
)
def test_a_rolling_update_never_serves_with_fewer(there: str, decision: Decision) -> None:
    workload = deployment(rollingUpdate={"maxSurge": "25%", "maxUnavailable": 0}, type="RollingUpdate")
    assert decide(workload, pods(there, workload)) == decision


@pytest.mark.parametrize(
    ("there", "decision"),
    [("", Decision(start=1)), ("O", Decision(end=("O0",))), ("O-", Decision()), ("n", Decision()), ("n-", Decision())],
)
def test_recreating_never_runs_two(there: str, decision: Decision) -> None:
    workload = deployment(1, type="Recreate")
    assert decide(workload, pods(there, workload)) == decision


def test_a_gpu_that_is_not_there_leaves_a_pod_pending() -> None:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    workload = Workload("Deployment", "n", "d", 1, template, {})
    assert workload.lacking() == "Insufficient nvidia.com/gpu"
    assert decide(workload, []) == Decision()


def test_nothing_is_asked_before_a_container_has_started() -> None:
    probe = {"grpc": {"port": 1}, "periodSeconds": 1, "failureThreshold": 3}
    spec = pod(container={"startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe})
    state = ProbeState(plan_container(spec, index=0, environment={}, seccomp_folder=""), born=0.0)
    assert state.startup is not None
    for now in (0.0, 1.0):
        due = state.due(now)
        assert due is state.startup
        state.answered(due, False, now)
    seen = [state.broken]
    state.answered(state.startup, True, 2.0)
    for now, good in ((2.0, True), (3.0, False), (4.0, False), (5.0, False)):
        assert state.readiness is not None
        state.answered(state.readiness, good, now)
        seen.append(state.ready)
    assert seen == [False, True, True, True, False]
    assert state.liveness is not None
    for now in (2.0, 3.0, 4.0):
        state.answered(state.liveness, False, now)
    assert state.broken
    assert Probe.read(None) is None


def endpoint(name: str, address: str, *, ready: bool = True, namespace: str = "n") -> Endpoint:
    return Endpoint(namespace, name, {"app": name.partition("-")[0]}, address, ready, {"grpc": 50051})


SERVICES = Objects(
    [
        {
            "kind": "Service",
            "metadata": {"namespace": "n", "name": "each"},
            "spec": {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 1, "targetPort": "grpc"}]},
        },
        {
            "kind": "Service",
            "metadata": {"namespace": "n", "name": "all"},
            "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": "grpc"}]},
        },
        {
            "kind": "NetworkPolicy",
            "metadata": {"namespace": "n", "name": "x"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "x"}},
                "policyTypes": ["Ingress"],
                "ingress": [
                    {"from": [{"podSelector": {"matchLabels": {"app": "y"}}}], "ports": [{"port": 50051}]},
                    {"from": [{"podSelector": {"matchLabels": {"app": "nobody"}}}]},
                ],
            },
        },
    ]
)


def test_names_lead_to_pods_that_are_ready() -> None:
    there = [endpoint("x-1", "10.0.0.1"), endpoint("x-2", "10.0.0.2", ready=False), endpoint("y-1", "10.0.0.3")]
    addresses = virtual_addresses(SERVICES, "10.9.9.", {})
    assert addresses == {("n", "all"): "10.9.9.1"}
    assert virtual_addresses(SERVICES, "10.8.8.", addresses) == addresses
    table = names(SERVICES, there, addresses)
    assert table["each.n.svc.cluster.local"] == ("10.0.0.1",)
    assert table["x-1.each.n.svc.cluster.local"] == ("10.0.0.1",)
    assert table["all.n.svc.cluster.local"] == ("10.9.9.1",)
    (virtual,) = virtual_services(SERVICES, there, addresses)
    assert virtual.targets == (("10.0.0.1", 50051),)


def test_a_policy_lets_in_whom_it_names_and_the_node() -> None:
    there = [endpoint("x-1", "10.0.0.1"), endpoint("y-1", "10.0.0.3"), endpoint("z-1", "10.0.0.4")]
    text = ruleset(there[0], SERVICES, there, [], node="10.0.0.254")
    inputs = text.partition("chain input")[2].partition("}")[0] + text.partition("chain input")[2].partition("\n  }")[0]
    assert "policy drop" in inputs
    assert "ip saddr { 10.0.0.3 } tcp dport 50051 accept" in inputs
    assert "ip saddr 10.0.0.254 accept" in inputs
    assert "10.0.0.4" not in inputs
    assert text.count("policy drop") == 1, "nothing was said of what goes out"
    assert ruleset(there[1], SERVICES, there, [], node="10.0.0.254").count("policy drop") == 0
    assert selects({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}, {"app": "x"})


def test_a_filter_like_containerds_forbids_what_sandboxes_are_made_of() -> None:
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 38,
        "syscalls": [{"names": ["read", "unshare", "mount", "clone", "clone3"], "action": "SCMP_ACT_ALLOW"}],
    }
    made = runtime_default(profile)
    allowed = {name for rule in made["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert allowed == {"read", "clone"}
    (clone,) = [rule for rule in made["syscalls"] if rule["names"] == ["clone"]]
    assert clone["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"
    assert profile["defaultErrnoRet"] == 38, "the original is left alone"
    assert json.dumps(made)


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return (
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + b"\x00" + kind.to_bytes(2, "big") + b"\x00\x01"
    )


def test_names_are_answered() -> None:
    table = {"a.b": ("10.0.0.1", "10.0.0.2"), "empty.b": ()}
    reply = answer(query("A.b"), table)
    assert reply is not None
    assert reply[:2] == b"\x12\x34"
    assert reply.endswith(bytes([10, 0, 0, 2]))
    assert int.from_bytes(reply[6:8], "big") == 2
    missing, empty, six = (answer(each, table) for each in (query("c.b"), query("empty.b"), query("a.b", 28)))
    assert missing is not None
    assert empty is not None
    assert six is not None
    assert (missing[3] & 15, empty[3] & 15, six[3] & 15) == (3, 0, 0)
    assert int.from_bytes(six[6:8], "big") == 0
    assert answer(b"short", table) is None


def test_runs_that_never_told_their_end_ran_until_something_was_killed() -> None:
    def run(begin: float, end: float | None) -> Run:
        return Run(begin, end, "", "", begin, 100.0)

    assert most_at_once([run(0, 2), run(1, 3), run(3, 4)]) == 2
    assert most_at_once([run(0, None), run(0.3, 1)]) == 2
    assert most_at_once([run(0, None), run(0.3, 1)], killed=[0.2]) == 1
    assert most_at_once([run(0, None), run(0.5, 1)]) == 1
