"""Slips in k8s/, one at a time: each is refused, with a message that names the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.k8s.conftest import Cluster
from tests.k8s.manifests import FOLDER

EXECUTOR, LIMITER, NETWORK, NAMESPACES = "30-executor.yaml", "20-limiter.yaml", "10-network.yaml", "00-namespaces.yaml"
ROLLOUT = "40-rollout.yaml"

EDITS = {
    "unknown field": (
        EXECUTOR, "enableServiceLinks: false", "enableServiceLink: false",
        'strict decoding error: unknown field "spec.template.spec.enableServiceLink"',
    ),
    "unknown field in a container": (
        EXECUTOR, "readOnlyRootFilesystem: true", "readonlyRootFilesystem: true",
        'unknown field "spec.template.spec.containers[0].securityContext.readonlyRootFilesystem"',
    ),
    "unknown kind of probe": (
        LIMITER, "grpc: {port: 50062, service: liveness}", "grcp: {port: 50062}",
        'unknown field "spec.template.spec.containers[0].startupProbe.grcp"',
    ),
    "wrong type": (
        EXECUTOR, "minReadySeconds: 2", 'minReadySeconds: "2"',
        "cannot unmarshal string into Go struct field .spec.minReadySeconds of type int32",
    ),
    "a number for a setting": (
        EXECUTOR, 'value: "8"', "value: 8",
        "cannot unmarshal number into Go struct field .spec.template.spec.containers[0].env[6].value of type string",
    ),
    "wrong apiVersion": (
        EXECUTOR, "apiVersion: autoscaling/v2", "apiVersion: autoscaling/v2beta2",
        "the server could not find the requested resource",
    ),
    "a missing selector": (
        LIMITER, "  selector:\n    matchLabels: {app.kubernetes.io/name: limiter}\n  template", "  template",
        "spec.selector: Required value",
    ),
    "a selector that misses its pods": (
        LIMITER, "      labels: {app.kubernetes.io/name: limiter, app.kubernetes.io/part-of: fairbox}\n    spec",
        "      labels: {app.kubernetes.io/part-of: fairbox}\n    spec",
        "`selector` does not match template `labels`",
    ),
    "a quantity with a slip": (
        EXECUTOR, "limits: {memory: 12Gi}", "limits: {memory: 12GiB}",
        'spec.template.spec.containers[0].resources.limits.memory: Invalid value: "12GiB": quantities must match',
    ),
    "a request above its limit": (
        EXECUTOR, "limits: {memory: 12Gi}", "limits: {memory: 3Gi}",
        'resources.requests: Invalid value: "4Gi": must be less than or equal to memory limit of 3Gi',
    ),
    "a volume that is too large to say": (
        EXECUTOR, "sizeLimit: 14Gi", "sizeLimit: 14 Gi", "volumes[2].emptyDir.sizeLimit: Invalid value",
    ),
    "a port beyond all ports": (
        EXECUTOR, "containerPort: 50051", "containerPort: 500510",
        "containers[0].ports[0].containerPort: Invalid value: 500510: must be between 1 and 65535, inclusive",
    ),
    "a long name of a port": (
        EXECUTOR, "{name: health, containerPort", "{name: health-of-executor, containerPort",
        'ports[1].name: Invalid value: "health-of-executor": must be no more than 15 characters',
    ),
    "an unmasked /proc in the node's user namespace": (
        EXECUTOR, "readOnlyRootFilesystem: true", "procMount: Unmasked",
        'procMount: Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`',
    ),
    "a name with capitals": (
        LIMITER, "  name: limiter\n", "  name: Limiter\n",
        'metadata.name: Invalid value: "Limiter": a lowercase RFC 1123 subdomain must consist of',
    ),
    "a container's name with a dot": (
        LIMITER, "- name: limiter\n", "- name: limiter.v1\n",
        'containers[0].name: Invalid value: "limiter.v1": a lowercase RFC 1123 label must consist of',
    ),
    "a label with a blank": (
        NAMESPACES, "app.kubernetes.io/part-of: fairbox\n    pod", 'app.kubernetes.io/part-of: "fair box"\n    pod',
        "metadata.labels: Invalid value",
    ),
    "an unknown level of pod security": (
        NAMESPACES, "enforce: restricted", "enforce: strict", "must be one of privileged, baseline, restricted",
    ),
    "a mount of no volume": (
        EXECUTOR, "{name: workspaces, mountPath", "{name: workspace, mountPath",
        'containers[0].volumeMounts[2].name: Not found: "workspace"',
    ),
    "two sources of one volume": (
        EXECUTOR, "emptyDir: {sizeLimit: 14Gi}", "emptyDir: {sizeLimit: 14Gi}\n          hostPath: {path: /}",
        "may not specify more than 1 volume type",
    ),
    "a probe that asks two ways": (
        EXECUTOR, "grpc: {port: 50061, service: liveness}", "grpc: {port: 50061}\n            tcpSocket: {port: 50061}",
        "may not specify more than 1 handler type",
    ),
    "a Localhost profile without its file": (
        EXECUTOR, "seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Localhost}",
        "seccompProfile.localhostProfile: Invalid value",
    ),
    "an unknown profile": (
        EXECUTOR, "seccompProfile: {type: RuntimeDefault}", "seccompProfile: {type: Default}",
        'seccompProfile.type: Unsupported value: "Default"',
    ),
    "rolling parts in Recreate": (
        LIMITER, "strategy: {type: Recreate}", "strategy: {type: Recreate, rollingUpdate: {maxSurge: 1}}",
        "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
    ),
    "an update that can't move": (
        EXECUTOR, "{maxUnavailable: 0, maxSurge: 25%}", "{maxUnavailable: 0, maxSurge: 0}",
        "may not be 0 when `maxSurge` is 0",
    ),
    "fewer at most than at least": (
        EXECUTOR, "maxReplicas: 8", "maxReplicas: 1",
        "spec.maxReplicas: Invalid value: 1: must be greater than or equal to `minReplicas`",
    ),
    "a policy for no direction": (
        NETWORK, "policyTypes: [Egress]", "policyTypes: [Outgress]", 'Unsupported value: "Outgress"',
    ),
    "a protocol that isn't one": (
        NETWORK, "{port: 53, protocol: UDP}", "{port: 53, protocol: udp}", 'protocol: Unsupported value: "udp"',
    ),
    "a restart policy of services in a job": (
        ROLLOUT, "restartPolicy: Never", "restartPolicy: Always",
        'restartPolicy: Unsupported value: "Always": supported values: "OnFailure", "Never"',
    ),
    "a schedule that isn't one": (
        ROLLOUT, '"@yearly"', '"yearly"', 'spec.schedule: Invalid value: "yearly"',
    ),
    "a claim without a size": (
        ROLLOUT, "requests: {storage: 10Gi}", "requests: {}", "spec.resources[storage]: Required value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
async def test_a_slip_is_refused(edit: str, cluster: Cluster, tmp_path: Path) -> None:
    file, old, new, message = EDITS[edit]
    text = (FOLDER / file).read_text(encoding="utf-8")
    assert old in text, "the edit has nothing to change"
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    if file != NAMESPACES:
        await cluster.kubectl.ok("apply", "-f", str(FOLDER / NAMESPACES))
    done = await cluster.kubectl("apply", "-f", str(tmp_path / file))
    assert done.code == 1
    assert message in done.err, done.err


FIXED = {
    "a selector": (
        LIMITER, "{app.kubernetes.io/name: limiter}\n  template", "{app.kubernetes.io/part-of: fairbox}\n  template",
        'spec.selector: Invalid value: {"matchLabels"',
    ),
    "a headless Service": (
        EXECUTOR, "clusterIP: None", "clusterIP: 10.96.7.7",
        'spec.clusterIP: Invalid value: "10.96.7.7": may not change once set',
    ),
    "a claim's way to be mounted": (
        ROLLOUT, "[ReadWriteOnce]", "[ReadWriteMany]", "spec: Forbidden: updates to the claim",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FIXED)
async def test_what_stands_can_not_be_changed(what: str, cluster: Cluster, tmp_path: Path) -> None:
    file, old, new, message = FIXED[what]
    text = (FOLDER / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    await cluster.kubectl.ok("apply", "-f", str(FOLDER))
    done = await cluster.kubectl("apply", "-f", str(tmp_path / file))
    assert done.code == 1
    assert message in done.err, done.err
