"""Rules for every pod of k8s/, and the configuration that its program derives from its settings."""

from __future__ import annotations

import copy
import re
import tomllib
from typing import Any

import pytest

from tests.k8s.manifests import ROOT, Document, Workload, load_all, name, of_kind, workload, workloads
from tests.k8s.podsecurity import violations

SERVICES = ("limiter", "executor")
OWN_CLAIM = "models"
"""Claim of the template with GPUs: whoever starts it creates the claim."""
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text: str) -> float:
    """The number that a Kubernetes quantity stands for."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)


def _each(workload: Workload) -> str:
    return workload.name


@pytest.fixture(params=workloads(), ids=_each)
def each(request: pytest.FixtureRequest) -> Workload:
    assert isinstance(request.param, Workload)
    return request.param


def test_the_three_tiers_are_there() -> None:
    assert {each.name: each.namespace for each in workloads()} == {
        "limiter": "fairbox",
        "executor": "fairbox-exec",
        "rollout": "fairbox",
        "rollout-sglang": "fairbox",
    }


def test_every_object_names_a_namespace_of_ours() -> None:
    ours = {document["metadata"]["name"] for document in of_kind("Namespace")}
    assert ours == {"fairbox", "fairbox-exec"}
    for document in load_all():
        if document["kind"] != "Namespace":
            assert document["metadata"].get("namespace") in ours, name(document)


def test_nothing_secret_and_no_rights_but_those_of_the_limiter_are_given_away() -> None:
    kinds = {document["kind"] for document in load_all()}
    assert not kinds & {"Secret", "ClusterRole", "ClusterRoleBinding"}
    assert [name(document) for document in of_kind("Role")] == ["Role fairbox/limiter"]
    assert [name(document) for document in of_kind("RoleBinding")] == ["RoleBinding fairbox/limiter"]


def test_no_pod_but_the_limiter_can_speak_to_the_api_server(each: Workload) -> None:
    assert each.spec["automountServiceAccountToken"] is (each.name == "limiter")
    assert each.spec["enableServiceLinks"] is False


def test_every_tier_has_an_account_of_its_own_without_a_token(each: Workload) -> None:
    account = each.spec["serviceAccountName"]
    assert account == each.name.partition("-")[0]
    (found,) = (document for document in of_kind("ServiceAccount") if document["metadata"]["name"] == account)
    assert found["metadata"]["namespace"] == each.namespace
    assert found["automountServiceAccountToken"] is False


def test_no_pod_has_rights_of_root(each: Workload) -> None:
    pod = each.spec["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    for container in (container["securityContext"] for container in each.containers):
        assert container["allowPrivilegeEscalation"] is False
        assert container["readOnlyRootFilesystem"] is True
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert not {"privileged", "runAsUser", "procMount"} & set(container)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(each.spec)
    assert not [volume for volume in each.spec.get("volumes", ()) if "hostPath" in volume]


def test_every_pod_is_restricted(each: Workload) -> None:
    """Any cluster takes it: no filter is left, and no user namespace is asked for."""
    assert violations("restricted", each.spec) == []
    assert "hostUsers" not in each.spec
    for document in of_kind("Namespace"):
        assert document["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("pod", "hostNetwork", True),
        ("pod", "hostPID", True),
        ("pod", "hostIPC", True),
        ("pod", "volumes", [{"name": "node", "hostPath": {"path": "/"}}]),
        ("pod", "volumes", [{"name": "share", "nfs": {"server": "a", "path": "/"}}]),
        ("pod", "securityContext", {"runAsNonRoot": True}),
        ("pod", "securityContext", {"seccompProfile": {"type": "RuntimeDefault"}}),
        ("pod", "securityContext", {"runAsNonRoot": True, "seccompProfile": {"type": "Unconfined"}}),
        ("container", "ports", [{"containerPort": 1, "hostPort": 1}]),
        ("security", "privileged", True),
        ("security", "allowPrivilegeEscalation", True),
        ("security", "capabilities", {}),
        ("security", "capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        ("security", "procMount", "Unmasked"),
        ("security", "runAsUser", 0),
        ("security", "appArmorProfile", {"type": "Unconfined"}),
    ],
)
def test_a_pod_with_more_than_restricted_allows_is_found(part: str, field: str, value: Any) -> None:
    spec = copy.deepcopy(workload("executor").spec)
    (container,) = spec["containers"]
    {"pod": spec, "container": container, "security": container["securityContext"]}[part][field] = value
    assert violations("restricted", spec)


def test_resources_are_asked_for_and_memory_is_bounded(each: Workload) -> None:
    for resources in (container["resources"] for container in each.containers):
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert quantity(resources["requests"]["memory"]) <= quantity(resources["limits"]["memory"])


def test_the_limiter_asks_for_the_core_that_a_takeover_needs() -> None:
    assert quantity(workload("limiter").container["resources"]["requests"]["cpu"]) >= 1


def test_every_volume_in_memory_or_on_disk_is_bounded(each: Workload) -> None:
    volumes = {volume["name"]: volume for volume in each.spec.get("volumes", ())}
    mounts = [mount for container in each.containers for mount in container.get("volumeMounts", ())]
    assert {mount["name"] for mount in mounts} == set(volumes)
    for volume in volumes.values():
        assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""}), volume["name"]


def test_volumes_claim_what_exists(each: Workload) -> None:
    claims = {document["metadata"]["name"] for document in of_kind("PersistentVolumeClaim")} | {OWN_CLAIM}
    for volume in each.spec.get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims


@pytest.mark.parametrize("tier", SERVICES)
def test_probes_ask_the_health_port(tier: str) -> None:
    pod = workload(tier)
    health = pod.ports["health"]
    # A limiter that waits to lead has started, and is not ready.
    started = "liveness" if tier == "limiter" else "readiness"
    for probe, service in (("startup", started), ("readiness", "readiness"), ("liveness", "liveness")):
        assert pod.container[f"{probe}Probe"]["grpc"] == {"port": health, "service": service}


def test_images_are_those_that_make_builds() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    built = re.search(r"^IMAGES := (.+)$", makefile, re.MULTILINE)
    assert built is not None
    assert "localhost/fairbox/$*:$(TAG)" in makefile
    assert "\nTAG ?= dev\n" in makefile
    assert {each.container["image"] for each in workloads()} == {
        f"localhost/fairbox/{image}:dev" for image in built[1].split()
    }
    for image in built[1].split():
        assert f"AS {image}\n" in containerfile(image)


def containerfile(tier: str) -> str:
    return (ROOT / "deploy" / "images" / f"{tier}.Containerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("tier", [*SERVICES, "rollout"])
def test_images_run_as_the_user_that_pods_have(tier: str) -> None:
    """And nothing is made from more than what constraints.txt pins."""
    text = containerfile(tier)
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    security = workload(tier).spec["securityContext"]
    assert users[-1] == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert "--constraint constraints.txt" in (ROOT / "deploy" / "images" / "install.sh").read_text(encoding="utf-8")
    assert not re.search(r"pip install (?!--no-deps)|python3 -m pip (?!wheel|--python)", text)


@pytest.mark.parametrize("tier", [*SERVICES, "rollout"])
def test_images_are_given_all_that_the_package_is_built_from(tier: str) -> None:
    """As pyproject.toml names it; and the context has it."""
    build = containerfile(tier).partition("\nFROM ")[2].partition("\nFROM ")[0]
    copied = {word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", build, re.MULTILINE) for word in line.split()}
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, wheel = document["project"], document["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {project["readme"], *project["license-files"], *wheel["packages"], *wheel["shared-data"]}
    assert needed <= copied
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for path in copied - {word for word in copied if word.startswith("wheels/")}:
        assert (ROOT / path).exists()
        assert any(line in (f"!{path}", f"!{path.partition('/')[0]}") for line in allowed), path


def test_the_executors_image_has_git() -> None:
    """Without it no workspace can be prepared."""
    stage = containerfile("executor").partition("AS executor\n")[2].partition("\nFROM ")[0]
    assert re.search(r"^RUN apt-get update && apt-get install .* git( |$)", stage, re.MULTILINE)


def test_the_image_has_the_model_that_make_installs() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    model = re.search(r"^MODEL := (\S+)$", makefile, re.MULTILINE)
    assert model is not None
    assert model[1] in containerfile("rollout")
    assert model[1] in (ROOT / "deploy" / "images" / "wheels.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("template", ["rollout", "rollout-sglang"])
def test_a_rollout_starts_only_when_somebody_starts_it(template: str) -> None:
    owner = workload(template).owner
    assert owner["kind"] == "CronJob"
    assert owner["spec"]["suspend"] is True


def _spec(kind: str) -> Document:
    (document,) = of_kind(kind)
    return dict(document["spec"])


def test_the_quota_has_room_for_every_replica_and_the_surge() -> None:
    hard = _spec("ResourceQuota")["hard"]
    most = _spec("HorizontalPodAutoscaler")["maxReplicas"]
    surge = workload("executor").owner["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    pods = most + -(-most * int(surge.removesuffix("%")) // 100)
    resources = workload("executor").container["resources"]
    assert int(hard["pods"]) >= pods
    for kind, resource in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
        assert quantity(hard[f"{kind}.{resource}"]) >= pods * quantity(resources[kind][resource])


def test_the_autoscaler_owns_the_number_of_replicas() -> None:
    target = _spec("HorizontalPodAutoscaler")["scaleTargetRef"]
    owner = workload(target["name"]).owner
    assert (owner["apiVersion"], owner["kind"]) == (target["apiVersion"], target["kind"])
    assert "replicas" not in owner["spec"]


def test_an_update_of_the_limiter_does_not_wait_for_a_second_one_to_lead() -> None:
    spec = workload("limiter").owner["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_gpus_are_those_that_the_replicas_of_sglang_take() -> None:
    sglang, rollout = workload("rollout-sglang").containers
    sizes = dict(word.removeprefix("--").split("=", 1) for word in sglang["args"])
    assert sglang["restartPolicy"] == "Always"
    for kind in ("requests", "limits"):
        assert int(sglang["resources"][kind]["nvidia.com/gpu"]) == int(sizes["tp-size"]) * int(sizes["dp-size"])
    env = {item["name"]: item.get("value") for item in rollout["env"]}
    assert env["ROLLOUT_ENGINE__URLS"] == f"[http://{sizes['host']}:{sizes['port']}]"
    assert env["ROLLOUT_MODEL"] == sizes["model-path"]
    for probe in ("startupProbe", "livenessProbe"):
        assert sglang[probe]["exec"]["command"][-1] == f"http://{sizes['host']}:{sizes['port']}/health"
