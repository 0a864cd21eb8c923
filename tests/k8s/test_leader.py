"""deploy/leader-k8s: k8s/ with a limiter that leads by a Lease, and no more rights than that takes."""

from __future__ import annotations

import copy
import shutil
import subprocess

import kubernetes_validate
import pytest

from fairbox.config import load
from limiter.config import LimiterConfig
from limiter.leadership.kubernetes import pod_identity, pod_namespace
from tests.k8s.manifests import ROOT, Document, name, parse, workload
from tests.k8s.test_schemas import VERSIONS

FOLDER = ROOT / "deploy" / "leader-k8s"


def documents(file: str) -> list[Document]:
    return parse((FOLDER / file).read_text(encoding="utf-8"))


def one(kind: str) -> Document:
    (found,) = (document for document in documents("rights.yaml") if document["kind"] == kind)
    return found


def patched() -> Document:
    """The limiter's Deployment as kustomize makes it, for the few fields that the patch has."""
    (patch,) = documents("limiter.yaml")
    base = copy.deepcopy(workload("limiter").owner)
    assert name(patch) == name(base)
    assert set(patch["spec"]) == {"template"}
    assert set(patch["spec"]["template"]) == {"spec"}
    spec, added = base["spec"]["template"]["spec"], copy.deepcopy(patch["spec"]["template"]["spec"])
    (container,) = added.pop("containers")
    assert set(container) == {"name", "env"}
    assert container["name"] == spec["containers"][0]["name"]
    spec["containers"][0]["env"] += container["env"]
    spec |= added
    return base


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_passes_the_strict_schema(version: str) -> None:
    for document in [*documents("rights.yaml"), patched()]:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_rights_are_those_that_the_lease_takes() -> None:
    env = {
        item["name"]: item.get("value", "x") for item in patched()["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    config = load(LimiterConfig, prefix="LIMITER", prog="limiter", description="", argv=[], env=env)
    assert config.leader == "k8s"
    assert one("Role")["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [config.lease_name],
            "verbs": ["get", "update"],
        },
    ]
    assert pod_identity(env) == "x_x"
    assert pod_namespace(env) == "x"


def test_the_rights_are_the_limiters_own() -> None:
    spec = patched()["spec"]["template"]["spec"]
    account = one("ServiceAccount")["metadata"]
    assert spec["serviceAccountName"] == account["name"]
    assert spec["automountServiceAccountToken"] is True
    assert one("RoleBinding")["roleRef"]["name"] == one("Role")["metadata"]["name"]
    (subject,) = one("RoleBinding")["subjects"]
    assert (subject["kind"], subject["name"], subject["namespace"]) == (
        "ServiceAccount",
        account["name"],
        account["namespace"],
    )
    assert {document["metadata"]["namespace"] for document in documents("rights.yaml")} == {"fairbox"}


def test_the_limiter_may_reach_the_api_server_and_nobody_else_may() -> None:
    policy = one("NetworkPolicy")["spec"]
    labels = workload("limiter").labels
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert not policy["podSelector"]["matchLabels"].items() <= workload("rollout").labels.items()
    assert policy["policyTypes"] == ["Egress"]
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == [443, 6443]


def test_the_image_has_what_leading_takes() -> None:
    containerfile = (ROOT / "deploy" / "images" / "limiter.Containerfile").read_text(encoding="utf-8")
    assert "install.sh /opt/venv k8s\n" in containerfile


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_it() -> None:
    command = ["kubectl", "kustomize", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    built = {name(document): document for document in parse(done.stdout)}
    found, expected = built["Deployment fairbox/limiter"], patched()
    for each in (found, expected):
        each["spec"]["template"]["spec"]["containers"][0]["env"].sort(key=str)
    assert found == expected
    assert "Role fairbox/limiter" in built
