"""deploy/: what components and overlays make of k8s/, and what must hold for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from executor_service.config import ExecutorConfig
from fairbox.config import load
from limiter.config import LimiterConfig
from rollout.config import RolloutConfig
from rollout.service.config import ServiceConfig
from tests.k8s.alerts import ALERTS, RULES, rule_object
from tests.k8s.manifests import (
    COMPONENTS,
    OVERLAYS,
    ROOT,
    Document,
    Workload,
    kustomized,
    name,
    of_kind,
    together,
    workload,
    workloads,
)
from tests.k8s.podsecurity import LABEL, violations

EVERY = [*COMPONENTS, *OVERLAYS]
CONFIGS: dict[str, type[Any]] = {"LIMITER": LimiterConfig, "EXECUTOR": ExecutorConfig, "ROLLOUT": RolloutConfig}
OWN_CONFIGS: dict[str, type[Any]] = {"rollout-service": ServiceConfig}
"""Workload -> its settings, if they are not those of its tier."""
FILES = ("/etc/fairbox/tokens/", "/etc/fairbox/tls/")


def component(wanted: str) -> list[Document]:
    return kustomized(ROOT / "deploy" / "components" / wanted)


def overlay(wanted: str) -> list[Document]:
    return kustomized(ROOT / "deploy" / "overlays" / wanted)


def _level(documents: list[Document], namespace: str) -> str:
    (found,) = (each for each in of_kind("Namespace", documents=documents) if each["metadata"]["name"] == namespace)
    return str(found["metadata"]["labels"][f"{LABEL}enforce"])


def test_all_of_them_are_tested() -> None:
    assert {path.name for path in COMPONENTS} == {
        "clients", "gateway", "gvisor", "images", "keda", "kueue", "monitoring", "mtls", "rollout-service",
        "seccomp-localhost", "small", "standby", "tokens", "tracing", "userns",
    }  # fmt: skip
    assert {path.name for path in OVERLAYS} == {"kuberay", "prod", "restricted"}


@pytest.mark.parametrize("folder", EVERY, ids=lambda path: path.name)
def test_its_namespaces_let_its_pods_in(folder: Path) -> None:
    documents = kustomized(folder)
    for pod in workloads(documents):
        level = _level(documents, pod.namespace)
        assert violations(level, pod.spec) == [], f"{pod.name} in {pod.namespace}, {level}"


@pytest.mark.parametrize(("folder", "level"), [("userns", "privileged"), ("seccomp-localhost", "baseline")])
def test_no_level_is_lower_than_its_pods_need(folder: str, level: str) -> None:
    documents = component(folder)
    assert _level(documents, "fairbox-exec") == level
    assert _level(documents, "fairbox") == "restricted"
    stricter = {"privileged": "baseline", "baseline": "restricted"}[level]
    assert violations(stricter, workload("executor", documents).spec)


@pytest.mark.parametrize("folder", ["components/userns", "components/seccomp-localhost", "overlays/prod"])
def test_the_level_namespaces_has_what_it_takes(folder: str) -> None:
    pod = workload("executor", kustomized(ROOT / "deploy" / folder))
    assert pod.spec["hostUsers"] is False
    assert pod.container["securityContext"]["procMount"] == "Unmasked"
    assert pod.spec["securityContext"]["seccompProfile"]["type"] != "RuntimeDefault"
    assert pod.env["EXECUTOR_MIN_ISOLATION"] == "namespaces"


def test_the_filter_is_put_where_the_pod_looks_for_it() -> None:
    documents = component("seccomp-localhost")
    local = workload("executor", documents).spec["securityContext"]["seccompProfile"]["localhostProfile"]
    installer = workload("seccomp", documents)
    folders = {volume["name"]: volume for volume in installer.spec["volumes"]}
    assert f"{folders['node']['hostPath']['path']}/{Path(local).name}" == f"/var/lib/kubelet/seccomp/{local}"
    copied = folders["profile"]["configMap"]["name"]
    (files,) = (
        each["data"] for each in of_kind("ConfigMap", documents=documents) if each["metadata"]["name"] == copied
    )
    profile = json.loads(files[Path(local).name])
    (rule,) = profile["syscalls"]
    assert (profile["defaultAction"], rule["action"]) == ("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO")
    assert rule["names"] == sorted(set(rule["names"]))
    for call in ("bpf", "keyctl", "io_uring_setup", "kexec_load", "init_module", "perf_event_open", "userfaultfd"):
        assert call in rule["names"]
    for call in ("unshare", "clone", "clone3", "mount", "umount2", "pivot_root", "setns", "seccomp"):
        assert call not in rule["names"], f"{call} is what a sandbox is made of"


@pytest.mark.parametrize("folder", ["prod", "restricted"])
def test_production_is_guarded(folder: str) -> None:
    documents = overlay(folder)
    for tier in ("limiter", "executor"):
        pod = workload(tier, documents)
        assert f"{tier.upper()}_INSECURE" not in pod.env
        assert {
            f"{tier.upper()}_TLS_CERT",
            f"{tier.upper()}_TLS_CLIENT_CA",
            f"{tier.upper()}_CLIENT_TOKEN_FILE",
        } <= set(pod.env)
    for pod in workloads(documents):
        if pod.labels.get("fairbox.dev/client"):
            assert {"FAIRBOX_TLS_CA", "FAIRBOX_TOKEN_FILE"} <= set(pod.env)
        for container in pod.containers:
            assert not container["image"].startswith("localhost/"), container["image"]
    assert not of_kind("Secret", documents=documents)


@pytest.mark.parametrize("folder", ["tokens", "mtls"])
def test_every_file_that_a_setting_names_is_mounted(folder: str) -> None:
    assert sum(map(_check_files, workloads(component(folder)))) >= 8


def _check_files(pod: Workload) -> int:
    """Number of the files that its settings name, each of which is mounted."""
    seen = 0
    mounts = {mount["mountPath"]: mount["name"] for mount in pod.container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    for variable, value in pod.env.items():
        if value.startswith(FILES):
            secret = volumes[mounts[str(Path(value).parent)]]["secret"]
            keys = {item["path"] for item in secret.get("items", ())} or {"tls.crt", "tls.key", "ca.crt"}
            assert Path(value).name in keys, variable
            assert secret["defaultMode"] == 0o440
            assert pod.spec["securityContext"]["fsGroup"] == pod.spec["securityContext"]["runAsGroup"]
            seen += 1
    return seen


def test_certificates_name_the_services_and_reach_the_pods() -> None:
    documents = component("mtls")
    certificates = {each["spec"]["secretName"]: each for each in of_kind("Certificate", documents=documents)}
    for pod in workloads(documents):
        (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == "tls")
        certificate = certificates[volume["secret"]["secretName"]]
        assert certificate["metadata"]["namespace"] == pod.namespace
    for service in of_kind("Service", documents=documents):
        meta = service["metadata"]
        (found,) = (each for each in certificates.values() if each["metadata"].get("labels", {}) == meta["labels"])
        assert f"{meta['name']}.{meta['namespace']}.svc.cluster.local" in found["spec"]["dnsNames"]


def test_a_rollout_service_before_tokens_and_certificates_is_guarded_too() -> None:
    documents = together(*(ROOT / "deploy" / "components" / each for each in ("rollout-service", "tokens", "mtls")))
    pod = workload("rollout-service", documents)
    assert "ROLLOUT_INSECURE" not in pod.env
    config = load(ServiceConfig, prefix="ROLLOUT", prog="rollout", description="", argv=[], env=pod.env)
    guards = (config.client_token_file, config.admin_token_file, config.tls_cert, config.tls_key, config.tls_client_ca)
    own = [value for variable, value in pod.env.items() if variable.startswith("FAIRBOX_T")]
    assert len(own) == 4
    _check_files(pod)
    certificates = {each["spec"]["secretName"]: each for each in of_kind("Certificate", documents=documents)}
    (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == "tls")
    names = certificates[volume["secret"]["secretName"]]["spec"]["dnsNames"]
    assert {f"{each}rollout-service.fairbox.svc.cluster.local" for each in ("", "*.")} <= set(names)
    assert all(each.startswith(FILES) for each in (*guards, *own))


def _settings(pod: Workload) -> Iterator[tuple[str, bool]]:
    """Each variable that is a setting, and whether its service has it."""
    for variable in pod.env:
        prefix, _, rest = variable.partition("_")
        if prefix in CONFIGS:
            config = OWN_CONFIGS.get(pod.name, CONFIGS[prefix])
            yield variable, rest.partition("__")[0].lower() in {field.name for field in fields(config)}


@pytest.mark.parametrize("folder", EVERY, ids=lambda path: path.name)
def test_every_variable_is_a_setting(folder: Path) -> None:
    for pod in workloads(kustomized(folder)):
        for variable, known in _settings(pod):
            assert known, variable


@pytest.mark.parametrize("folder", EVERY, ids=lambda path: path.name)
def test_the_services_take_their_settings(folder: Path) -> None:
    pods = [pod for pod in workloads(kustomized(folder)) if pod.name != "seccomp"]
    for pod in pods:
        tier = pod.name.partition("-")[0].upper()
        env = {variable: value for variable, value in pod.env.items() if not value.startswith("$(")}
        load(OWN_CONFIGS.get(pod.name, CONFIGS[tier]), prefix=tier, prog=pod.name, description="", argv=[], env=env)


def test_components_go_together() -> None:
    """All but those that are one another's alternative."""
    folders = [path for path in COMPONENTS if path.name not in ("gvisor", "seccomp-localhost", "small")]
    documents = together(*folders)
    for pod in workloads(documents):
        assert violations(_level(documents, pod.namespace), pod.spec) == []
        for container in pod.containers:
            for field, key in (("env", "name"), ("volumeMounts", "mountPath"), ("ports", "containerPort")):
                found = [each[key] for each in container.get(field, ())]
                assert len(found) == len(set(found)), f"{pod.name}: {field} {found}"
    for folder in folders:
        alone = {name(each) for each in kustomized(folder)} - {"HorizontalPodAutoscaler fairbox-exec/executor"}
        assert alone <= {name(each) for each in documents}


def test_an_update_of_images_names_every_image_of_ours() -> None:
    for wanted in ("prod", "restricted"):
        listed = yaml.safe_load(
            (ROOT / "deploy" / "overlays" / wanted / "kustomization.yaml").read_text(encoding="utf-8")
        )
        assert {each["name"] for each in listed["images"]} == {
            container["image"].rpartition(":")[0]
            for pod in workloads()
            for container in pod.containers
            if container["image"].startswith("localhost/")
        }


def test_two_autoscalers_never_fight() -> None:
    documents = component("keda")
    assert not of_kind("HorizontalPodAutoscaler", documents=documents)
    (scaled,) = of_kind("ScaledObject", documents=documents)
    (replaced,) = of_kind("HorizontalPodAutoscaler")
    assert scaled["spec"]["scaleTargetRef"] == replaced["spec"]["scaleTargetRef"]
    assert scaled["spec"]["maxReplicaCount"] == replaced["spec"]["maxReplicas"]
    assert scaled["spec"]["minReplicaCount"] == replaced["spec"]["minReplicas"]
    assert scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == replaced["spec"]["behavior"]


def test_figures_are_read_from_ports_that_pods_have_and_policies_open() -> None:
    documents = component("monitoring")
    opened = {
        (policy["metadata"]["namespace"], port["port"])
        for policy in of_kind("NetworkPolicy", documents=documents)
        if policy["metadata"]["name"] == "metrics"
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    }
    monitors = of_kind("PodMonitor", documents=documents)
    for pod in workloads(documents):
        assert (pod.namespace, pod.ports["metrics"]) in opened
        fitting = [
            each for each in monitors
            if each["metadata"]["namespace"] == pod.namespace
            and each["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()
        ]  # fmt: skip
        assert len(fitting) == 1, pod.name
        assert fitting[0]["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"


def test_the_operators_alerts_are_the_alerts() -> None:
    if not ALERTS.exists():
        pytest.skip("deploy/monitoring has no alerts")
    made = rule_object(ALERTS.read_text(encoding="utf-8"))
    assert yaml.safe_load(RULES.read_text(encoding="utf-8")) == made, "write it anew: python -m tests.k8s.alerts"


def test_jobs_name_a_queue_that_is_there() -> None:
    documents = component("kueue")
    (queue,) = of_kind("LocalQueue", documents=documents)
    (cluster,) = of_kind("ClusterQueue", documents=documents)
    assert queue["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    covered = {each for group in cluster["spec"]["resourceGroups"] for each in group["coveredResources"]}
    for pod in workloads(documents):
        if pod.owner["kind"] == "CronJob":
            label = pod.owner["spec"]["jobTemplate"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
            assert label == queue["metadata"]["name"]
            assert {each for c in pod.containers for each in c["resources"]["requests"]} <= covered, name(pod.owner)


def test_a_second_limiter_is_on_another_node() -> None:
    owner = workload("limiter", component("standby")).owner
    assert owner["spec"]["replicas"] == 2
    (term,) = owner["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    assert term["labelSelector"]["matchLabels"].items() <= owner["spec"]["template"]["metadata"]["labels"].items()
    (role,) = of_kind("Role")
    assert role["rules"][1]["resourceNames"] == ["limiter"]
