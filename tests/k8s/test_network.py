"""Reachability: Services, the names in settings, and the network policies, read the way a cluster reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.k8s.manifests import Document, Workload, matches, of_kind, workload, workloads

PORTS = {
    "limiter": {"grpc": 50052, "health": 50062},
    "executor": {"grpc": 50051, "health": 50061},
    "rollout": {},
    "rollout-sglang": {},
}
"""Ports that clients rely on."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod, as network policies see it."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Beyond its name."""

    @classmethod
    def of(cls, pod: Workload) -> Peer:
        return cls(pod.namespace, pod.labels)


LIMITER, EXECUTOR, ROLLOUT = (Peer.of(workload(tier)) for tier in ("limiter", "executor", "rollout"))
STRANGER = Peer("fairbox", {"app": "stranger"})
"""A pod of the same namespace without the label."""
ELSEWHERE = Peer("default", {"fairbox.dev/client": "true"})
"""A pod with the label in a namespace that is not ours."""
LOOKALIKE = Peer("default", {"app.kubernetes.io/name": "executor"})
DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
API_PORTS = [443, 6443]
API_SERVER = Peer("kube-system", {"component": "kube-apiserver"})


def _policies(peer: Peer, direction: str, documents: Sequence[Document] | None = None) -> list[Document]:
    return [
        policy["spec"]
        for policy in of_kind("NetworkPolicy", documents=documents)
        if policy["metadata"]["namespace"] == peer.namespace
        and direction in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], peer.labels)
    ]


def _selects(selector: Document, peer: Peer, home: str) -> bool:
    """Says whether one entry of `from` or `to` selects a pod; `home` is the namespace of the policy."""
    assert set(selector) <= {"namespaceSelector", "podSelector"}, "an address block would need a rule here"
    if "namespaceSelector" in selector:
        labels = {"kubernetes.io/metadata.name": peer.namespace, **peer.namespace_labels}
        namespace_fits = matches(selector["namespaceSelector"], labels)
    else:
        namespace_fits = peer.namespace == home
    return namespace_fits and matches(selector.get("podSelector"), peer.labels)


def _open(peer: Peer, other: Peer, port: int, direction: str, side: str, documents: Sequence[Document] | None) -> bool:
    policies = _policies(peer, direction, documents)
    if not policies:
        return peer.namespace not in ("fairbox", "fairbox-exec")
    for rule in (rule for policy in policies for rule in policy.get(direction.lower(), ())):
        # A rule without `from` or `to` allows all of them; the API server alone can't be named otherwise.
        assert rule["ports"]
        assert side in rule or [item["port"] for item in rule["ports"]] == API_PORTS
        chosen = side not in rule or any(_selects(selector, other, peer.namespace) for selector in rule[side])
        if chosen and any(item["port"] == port for item in rule["ports"]):
            return True
    return False


def allowed(source: Peer, target: Peer, port: int, documents: Sequence[Document] | None = None) -> bool:
    """Says whether `source` may open a connection to `port` of `target`, by the policies of k8s/ or of `documents`:
    both ends have to allow it."""
    outwards = _open(source, target, port, "Egress", "to", documents)
    return outwards and _open(target, source, port, "Ingress", "from", documents)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        (ROLLOUT, LIMITER, 50052),
        (ROLLOUT, EXECUTOR, 50051),
        (EXECUTOR, LIMITER, 50052),
        (ROLLOUT, DNS, 53),
        (EXECUTOR, DNS, 53),
        (LIMITER, API_SERVER, 443),
        (LIMITER, API_SERVER, 6443),
    ],
)
def test_what_has_to_be_reached_is_reached(source: Peer, target: Peer, port: int) -> None:
    assert allowed(source, target, port)


@pytest.mark.parametrize("port", [22, 53, 80, 443, 6443, 9464, 50051, 50052, 50053, 50061, 50062])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (EXECUTOR, ROLLOUT),
        (EXECUTOR, EXECUTOR),
        (EXECUTOR, API_SERVER),
        (EXECUTOR, ELSEWHERE),
        (LIMITER, EXECUTOR),
        (LIMITER, ROLLOUT),
        (STRANGER, LIMITER),
        (STRANGER, EXECUTOR),
        (ELSEWHERE, LIMITER),
        (ELSEWHERE, EXECUTOR),
        (LOOKALIKE, LIMITER),
        (ROLLOUT, API_SERVER),
        (ROLLOUT, STRANGER),
    ],
)
def test_everything_else_is_closed(source: Peer, target: Peer, port: int) -> None:
    assert not allowed(source, target, port)


@pytest.mark.parametrize("port", [22, 53, 80, 50051, 50052, 50053])
def test_the_limiter_reaches_nothing_but_the_api_server(port: int) -> None:
    for other in (DNS, API_SERVER, EXECUTOR, ROLLOUT, ELSEWHERE):
        assert not allowed(LIMITER, other, port)


@pytest.mark.parametrize(("tier", "port"), [("limiter", 50053), ("limiter", 50062), ("executor", 50061)])
def test_clients_reach_no_port_but_that_of_the_service(tier: str, port: int) -> None:
    assert not allowed(ROLLOUT, Peer.of(workload(tier)), port)


def test_every_namespace_denies_by_default() -> None:
    for namespace in of_kind("Namespace"):
        anything = Peer(namespace["metadata"]["name"], {})
        assert _policies(anything, "Ingress")
        assert _policies(anything, "Egress")


def test_every_selector_of_a_policy_selects_something() -> None:
    """A label with a slip in it would close a door for good, silently."""
    known = [Peer.of(pod) for pod in workloads()] + [DNS]
    for policy in of_kind("NetworkPolicy"):
        home = policy["metadata"]["namespace"]
        own = [peer for peer in known if peer.namespace == home]
        assert any(matches(policy["spec"]["podSelector"], peer.labels) for peer in own)
        for rule in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
            for selector in rule.get("from", rule.get("to", ())):
                assert any(_selects(selector, peer, home) for peer in known), selector


@pytest.mark.parametrize("pod", workloads(), ids=lambda pod: pod.name)
def test_container_ports_are_those_that_clients_rely_on(pod: Workload) -> None:
    assert pod.ports == PORTS[pod.name]


@pytest.mark.parametrize("service", of_kind("Service"), ids=lambda service: service["metadata"]["name"])
def test_services_lead_to_one_kind_of_pod_and_a_port_it_has(service: Document) -> None:
    selected = [
        pod
        for pod in workloads()
        if pod.namespace == service["metadata"]["namespace"]
        and service["spec"]["selector"].items() <= pod.labels.items()
    ]
    assert len(selected) == 1
    for port in service["spec"]["ports"]:
        assert selected[0].ports[port["targetPort"]] == port["port"]


def test_controllers_select_their_own_pods() -> None:
    for pod in workloads():
        if "selector" in pod.owner["spec"]:
            assert matches(pod.owner["spec"]["selector"], pod.labels)
        for spread in pod.spec.get("topologySpreadConstraints", ()):
            assert matches(spread["labelSelector"], pod.labels)
    for budget in of_kind("PodDisruptionBudget"):
        assert any(
            pod.namespace == budget["metadata"]["namespace"] and matches(budget["spec"]["selector"], pod.labels)
            for pod in workloads()
        )


def _targets() -> Iterator[tuple[str, str, str]]:
    for pod in workloads():
        for variable, value in pod.env.items():
            if value.startswith("dns:"):
                yield pod.name, variable, value


@pytest.mark.parametrize(("tier", "variable", "value"), list(_targets()))
def test_every_target_is_a_service_that_may_be_reached(tier: str, variable: str, value: str) -> None:
    parts = re.fullmatch(r"dns:///([\w-]+)\.([\w-]+)\.svc\.cluster\.local:(\d+)", value)
    assert parts is not None, f"{variable}={value}"
    (service,) = (
        each
        for each in of_kind("Service")
        if (each["metadata"]["name"], each["metadata"]["namespace"]) == (parts[1], parts[2])
    )
    assert int(parts[3]) in [port["port"] for port in service["spec"]["ports"]]
    target = next(pod for pod in workloads() if service["spec"]["selector"].items() <= pod.labels.items())
    assert allowed(Peer.of(workload(tier)), Peer.of(target), int(parts[3]))


def test_all_connections_are_configured() -> None:
    assert {(tier, variable) for tier, variable, _ in _targets()} == {
        ("executor", "EXECUTOR_LIMITER"),
        ("rollout", "ROLLOUT_LIMITER"),
        ("rollout", "ROLLOUT_EXECUTOR"),
        ("rollout-sglang", "ROLLOUT_LIMITER"),
        ("rollout-sglang", "ROLLOUT_EXECUTOR"),
    }
