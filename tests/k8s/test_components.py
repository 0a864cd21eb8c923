"""Ports that single components open, and their fit: the gateway, clients in other namespaces, a small cluster; and the
Job that looks at a node."""

from __future__ import annotations

import yaml

from executor_service.config import ExecutorConfig
from executor_service.images.store import MOST_BYTES
from fairbox.config import load
from rollout.service.config import ServiceConfig
from tests.k8s.manifests import ROOT, Document, of_kind, parse, together, workload, workloads
from tests.k8s.podsecurity import violations
from tests.k8s.test_network import ELSEWHERE, EXECUTOR, LIMITER, ROLLOUT, STRANGER, Peer, allowed
from tests.k8s.test_pods import quantity
from tests.k8s.test_schemas import check

COMPONENTS = ROOT / "deploy" / "components"
TRAINING = Peer("training", {"fairbox.dev/client": "true"}, {"fairbox.dev/clients": "true"})
BYSTANDER = Peer("training", {}, {"fairbox.dev/clients": "true"})
PRETENDER = Peer("fairbox-exec", {"fairbox.dev/client": "true"})


def of(*components: str) -> list[Document]:
    return together(*(COMPONENTS / each for each in components))


def test_the_gateway_is_a_service_for_clients_alone() -> None:
    documents = of("gateway")
    pod = workload("executor", documents)
    assert pod.env["EXECUTOR_GATEWAY_LISTEN"] == f"0.0.0.0:{pod.ports['gateway']}"
    (service,) = (each for each in of_kind("Service", documents=documents) if each["metadata"]["name"] == "sandbox")
    assert service["spec"]["selector"].items() <= pod.labels.items()
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["gateway"]
    assert allowed(ROLLOUT, EXECUTOR, 8080, documents)
    assert not allowed(ROLLOUT, EXECUTOR, 8080)
    for other in (STRANGER, ELSEWHERE, LIMITER, PRETENDER):
        assert not allowed(other, EXECUTOR, 8080, documents)


def test_its_address_is_the_one_of_the_page() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    assert "http://sandbox.fairbox-exec.svc.cluster.local:8080/run_code" in page


def test_clients_of_other_namespaces_are_admitted_by_two_labels() -> None:
    documents = of("clients")
    for target, port in ((LIMITER, 50052), (EXECUTOR, 50051)):
        assert allowed(TRAINING, target, port, documents)
        assert not allowed(TRAINING, target, port)
        for other in (BYSTANDER, ELSEWHERE, PRETENDER):
            assert not allowed(other, target, port, documents)
    assert allowed(TRAINING, EXECUTOR, 8080, of("gateway", "clients"))


def test_the_rollout_service_is_for_clients_alone_and_keeps_its_trajectories() -> None:
    documents = of("rollout-service", "clients")
    pod = workload("rollout-service", documents)
    config = load(ServiceConfig, prefix="ROLLOUT", prog="", description="", argv=[], env=pod.env)
    assert (config.listen, config.health_listen) == (f"0.0.0.0:{pod.ports['grpc']}", f"0.0.0.0:{pod.ports['health']}")
    service, port = Peer.of(pod), pod.ports["grpc"]
    for client in (ROLLOUT, TRAINING):
        assert allowed(client, service, port, documents)
        assert not allowed(client, service, pod.ports["health"], documents)
    for other in (STRANGER, ELSEWHERE, LIMITER, EXECUTOR, PRETENDER, BYSTANDER):
        assert not allowed(other, service, port, documents)
    for target, asked in ((LIMITER, 50052), (EXECUTOR, 50051)):
        assert allowed(service, target, asked, documents)
    (claim,) = pod.owner["spec"]["volumeClaimTemplates"]
    (mount,) = (each for each in pod.container["volumeMounts"] if each["name"] == claim["metadata"]["name"])
    assert config.out.startswith(f"{mount['mountPath']}/")
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    (found,) = (each for each in of_kind("Service", documents=documents) if each["metadata"]["name"] == pod.name)
    assert found["spec"]["selector"].items() <= pod.labels.items()
    assert pod.owner["spec"]["serviceName"] == found["metadata"]["name"]
    page = (ROOT / "docs" / "how-to" / "rollout-service.md").read_text(encoding="utf-8")
    assert f"rollout-service.fairbox.svc.cluster.local:{port}" in page


def test_images_have_a_volume_with_room_for_them_and_for_snapshots() -> None:
    documents = of("userns", "images")
    pod = workload("executor", documents)
    config = load(ExecutorConfig, prefix="EXECUTOR", prog="", description="", argv=[], env=pod.env)
    (mount,) = (each for each in pod.container["volumeMounts"] if each["mountPath"] == config.image_dir)
    (volume,) = (each for each in pod.spec["volumes"] if each["name"] == mount["name"])
    claims = of_kind("PersistentVolumeClaim", documents=documents)
    (claim,) = (each for each in claims if each["metadata"]["namespace"] == pod.namespace)
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    room = quantity(claim["spec"]["resources"]["requests"]["storage"])
    assert room >= MOST_BYTES + config.max_snapshot_bytes


def test_a_small_cluster_is_enough() -> None:
    documents = of("small")
    requests = [
        container["resources"]["requests"]
        for pod in workloads(documents)
        if pod.owner["kind"] == "Deployment"
        for container in pod.containers
    ]
    assert sum(quantity(each["cpu"]) for each in requests) <= 0.5
    assert sum(quantity(each["memory"]) for each in requests) <= 2 << 30
    (scaler,) = of_kind("HorizontalPodAutoscaler", documents=documents)
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (1, 1)
    env = workload("executor", documents).env
    config = load(ExecutorConfig, prefix="EXECUTOR", prog="executor", description="", argv=[], env=env)
    (limits,) = (
        yaml.safe_load(each["data"]["limiter.yaml"])
        for each in of_kind("ConfigMap", documents=documents)
        if each["metadata"]["name"] == "limiter"
    )
    assert limits["buckets"]["code"]["max_in_flight"] <= config.max_concurrent
    most = quantity(workload("executor", documents).container["resources"]["limits"]["memory"])
    assert config.max_concurrent * (config.limits.memory_bytes + config.limits.disk_bytes) < most
    assert config.max_limits.memory_bytes < most


def test_the_page_says_what_all_of_it_asks_for() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    limiter, executor = (workload(tier).container["resources"]["requests"] for tier in ("limiter", "executor"))
    (scaler,) = of_kind("HorizontalPodAutoscaler")
    least = scaler["spec"]["minReplicas"]
    assert quantity(limiter["cpu"]) + least * quantity(executor["cpu"]) == 5
    assert 8 << 30 < quantity(limiter["memory"]) + least * quantity(executor["memory"]) <= 9 << 30
    assert "**Five processors and 9 GiB** free" in page


def test_the_job_that_looks_at_a_node_is_confined_as_an_executor() -> None:
    (job,) = parse((ROOT / "deploy" / "doctor" / "job.yaml").read_text(encoding="utf-8"))
    check([job])
    spec, executor = job["spec"]["template"]["spec"], workload("executor")
    assert violations("restricted", spec) == []
    (container,) = spec["containers"]
    same = {name: value for name, value in executor.spec["securityContext"].items() if name != "fsGroupChangePolicy"}
    assert spec["securityContext"] == same
    assert container["securityContext"] == executor.container["securityContext"]
    assert container["image"] == executor.container["image"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env.items() <= executor.env.items()
