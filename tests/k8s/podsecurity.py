"""Pod Security's levels `baseline` and `restricted`, as Kubernetes 1.36 enforces them: what a pod may not have.

Stricter than a cluster in what no pod here uses: every added capability, every sysctl and every SELinux option is
refused. A pod with a user namespace of its own may unmask /proc in a `baseline` namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LABEL = "pod-security.kubernetes.io/"
_VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
    "image",
}  # fmt: skip

Object = Mapping[str, Any]


def violations(level: str, spec: Object) -> list[str]:
    """Fields of a pod's spec that a level forbids; empty: the pod is let in."""
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    found = list(_baseline(spec, containers)) if level != "privileged" else []
    if level == "restricted":
        found += [f"volume {each['name']}" for each in spec.get("volumes", ()) if set(each) - _VOLUMES]
        for container in containers:
            context = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
            found += [f"{container['name']}: {field}" for field in _unrestricted(context, spec)]
    return found


def _baseline(spec: Object, containers: list[Object]) -> Iterator[str]:
    yield from (field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field))
    yield from (f"volume {each['name']}: hostPath" for each in spec.get("volumes", ()) if "hostPath" in each)
    for container in containers:
        yield from (f"{container['name']}: hostPort" for port in container.get("ports", ()) if port.get("hostPort"))
    for context in (each.get("securityContext", {}) for each in (spec, *containers)):
        yield from (field for field in ("privileged", "sysctls", "seLinuxOptions") if context.get(field))
        yield from (f"capability {each}" for each in context.get("capabilities", {}).get("add", ()))
        if context.get("procMount", "Default") != "Default" and spec.get("hostUsers") is not False:
            yield "procMount"
        for field in ("seccompProfile", "appArmorProfile"):
            if context.get(field, {}).get("type") == "Unconfined":
                yield field


def _unrestricted(context: Object, spec: Object) -> Iterator[str]:
    """Fields of a container's security context, over that of its pod, that `restricted` refuses or misses."""
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if "ALL" not in context.get("capabilities", {}).get("drop", ()):
        yield "capabilities"
    if "seccompProfile" not in context:
        yield "seccompProfile"
    root = context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0
    if root and spec.get("hostUsers") is not False:
        yield "runAsNonRoot"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
