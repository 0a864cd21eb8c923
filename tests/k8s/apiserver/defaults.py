"""What an API server fills in, as far as a deployment shows it, and the one form of what can be written in several."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.quantity import canonical
from tests.k8s.apiserver.schemas import Node, Schemas

__all__ = ["containers", "defaulted", "template_of"]

Object = dict[str, Any]
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_POD = {
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "securityContext": {},
    "enableServiceLinks": True,
}
_FILE_MODE = 0o644


def defaulted(schemas: Schemas, kind: Kind, found: Object) -> Object:
    """The object as it is stored: with defaults, canonical quantities and without write-only fields. ValueError for a
    quantity that can't be read; its text begins with the path."""
    made = copy.deepcopy(found)
    _quantities(schemas.of(kind), made, "")
    template = template_of(kind.kind, made)
    if template is not None:
        _pod(template.setdefault("spec", {}))
    fill = _KINDS.get(kind.kind)
    if fill is not None and not kind.custom:
        fill(made)
    return made


def template_of(kind: str, found: Object) -> Object | None:
    """The pod that an object is, or makes; None: neither."""
    if kind == "Pod":
        return found
    spec = found.get("spec", {})
    if kind == "CronJob":
        spec = spec.get("jobTemplate", {}).get("spec", {})
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"):
        template: Object = spec.setdefault("template", {})
        return template
    return None


def containers(pod: Object) -> Iterator[tuple[str, Object]]:
    """Path below the pod's spec and container, init containers first."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(field, ())):
            yield f"{field}[{index}]", container


def _quantities(node: Node | None, value: Any, path: str) -> Any:
    if node is None:
        return value
    if node.quantity and isinstance(value, str | int | float):
        try:
            return canonical(value)
        except ValueError as error:
            raise ValueError(f"{path}\n{error}") from None
    if isinstance(value, dict):
        for key, each in value.items():
            value[key] = _quantities(node.field(key), each, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        value[:] = [_quantities(node.items, each, f"{path}[{index}]") for index, each in enumerate(value)]
    return value


def _fill(found: Object, values: Object) -> None:
    for key, value in values.items():
        found.setdefault(key, copy.deepcopy(value))


def _pod(spec: Object) -> None:
    _fill(spec, _POD)
    for _, container in containers(spec):
        _container(container)
    for volume in spec.get("volumes", ()):
        for source in ("configMap", "secret", "projected", "downwardAPI"):
            if source in volume:
                volume[source].setdefault("defaultMode", _FILE_MODE)
        for part in volume.get("projected", {}).get("sources", ()):
            if "serviceAccountToken" in part:
                part["serviceAccountToken"].setdefault("expirationSeconds", 3600)


def _container(container: Object) -> None:
    tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
    latest = tag in ("", "latest") and "@" not in container.get("image", "")
    _fill(
        container,
        {
            "imagePullPolicy": "Always" if latest else "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "resources": {},
        },
    )
    resources = container["resources"]
    if "limits" in resources:
        _fill(resources.setdefault("requests", {}), resources["limits"])
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            _fill(container[probe], _PROBE)
            if "grpc" in container[probe]:
                container[probe]["grpc"].setdefault("service", "")
            if "httpGet" in container[probe]:
                container[probe]["httpGet"].setdefault("scheme", "HTTP")
    for variable in container.get("env", ()):
        field = variable.get("valueFrom", {}).get("fieldRef")
        if field is not None:
            field.setdefault("apiVersion", "v1")


def _deployment(found: Object) -> None:
    spec = found["spec"]
    _fill(spec, {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": {}})
    spec["strategy"].setdefault("type", "RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _fill(spec["strategy"].setdefault("rollingUpdate", {}), {"maxUnavailable": "25%", "maxSurge": "25%"})


def _stateful_set(found: Object) -> None:
    spec = found["spec"]
    _fill(
        spec,
        {
            "replicas": 1,
            "podManagementPolicy": "OrderedReady",
            "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        },
    )
    for claim in spec.get("volumeClaimTemplates", ()):
        _fill(claim, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}})
        claim["spec"].setdefault("volumeMode", "Filesystem")


def _job_spec(spec: Object) -> None:
    _fill(spec, {"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed"})
    _fill(spec, {"suspend": False, "podReplacementPolicy": "TerminatingOrFailed"})


def _cron_job(found: Object) -> None:
    _fill(
        found["spec"],
        {
            "concurrencyPolicy": "Allow",
            "suspend": False,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
        },
    )


def _service(found: Object) -> None:
    spec = found["spec"]
    _fill(spec, {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"})
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])
    if spec["type"] != "ExternalName":
        _fill(spec, {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})


def _policy(found: Object) -> None:
    spec = found["spec"]
    spec.setdefault("policyTypes", ["Ingress", "Egress"] if "egress" in spec else ["Ingress"])
    for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
        for port in rule.get("ports", ()):
            port.setdefault("protocol", "TCP")


def _autoscaler(found: Object) -> None:
    spec = found["spec"]
    spec.setdefault("minReplicas", 1)
    for rules in spec.get("behavior", {}).values():
        rules.setdefault("selectPolicy", "Max")


def _binding(found: Object) -> None:
    for subject in found.get("subjects", ()):
        if subject["kind"] in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _secret(found: Object) -> None:
    found.setdefault("type", "Opaque")
    plain = found.pop("stringData", {})
    if plain:
        found.setdefault("data", {})
        found["data"] |= {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}


def _limits(found: Object) -> None:
    for limit in found["spec"]["limits"]:
        if limit["type"] == "Container":
            _fill(limit.setdefault("default", {}), limit.get("max", {}))
            _fill(limit.setdefault("defaultRequest", {}), limit["default"])


def _claim(found: Object) -> None:
    found["spec"].setdefault("volumeMode", "Filesystem")


def _storage(found: Object) -> None:
    _fill(found, {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})


_KINDS: dict[str, Callable[[Object], None]] = {
    "Deployment": _deployment,
    "StatefulSet": _stateful_set,
    "Job": lambda found: _job_spec(found["spec"]),
    "CronJob": _cron_job,
    "Service": _service,
    "NetworkPolicy": _policy,
    "HorizontalPodAutoscaler": _autoscaler,
    "RoleBinding": _binding,
    "ClusterRoleBinding": _binding,
    "Secret": _secret,
    "LimitRange": _limits,
    "PersistentVolumeClaim": _claim,
    "StorageClass": _storage,
}
