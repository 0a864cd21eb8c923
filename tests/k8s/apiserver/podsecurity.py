"""Pod Security admission: which pods the levels `baseline` and `restricted` let in.

As measured on a cluster of 1.36, on which the level `baseline` lets an unmasked /proc in where the pod has a user
namespace of its own; before 1.36 it is taken to refuse that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.defaults import containers

__all__ = ["LABEL", "LEVELS", "violations"]

LABEL = "pod-security.kubernetes.io/"
LEVELS = ("privileged", "baseline", "restricted")
_RELAXED_FROM = (1, 36)
_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip
_VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
    "image",
}  # fmt: skip

Object = Mapping[str, Any]


def violations(level: str, spec: Object, version: str) -> list[str]:
    """What of a pod's spec a level forbids; empty: it may come in."""
    if level == "privileged":
        return []
    relaxed = spec.get("hostUsers") is False and tuple(map(int, version.split("."))) >= _RELAXED_FROM
    found = list(_baseline(spec, relaxed))
    if level == "restricted":
        found += _restricted(spec, relaxed)
    return found


def _contexts(spec: Object) -> Iterator[tuple[str, Object]]:
    yield "pod", spec.get("securityContext", {})
    for _, container in containers(dict(spec)):
        yield f'container "{container["name"]}"', container.get("securityContext", {})


def _baseline(spec: Object, relaxed: bool) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"host namespaces ({field}=true)"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f'hostPath volumes (volume "{volume["name"]}")'
    for _, container in containers(dict(spec)):
        for port in container.get("ports", ()):
            if port.get("hostPort"):
                yield f'hostPort (container "{container["name"]}" uses hostPort {port["hostPort"]})'
    for who, context in _contexts(spec):
        if context.get("privileged"):
            yield f"privileged ({who} must not set securityContext.privileged=true)"
        extra = set(context.get("capabilities", {}).get("add", ())) - _BASELINE_CAPABILITIES
        if extra:
            yield f"non-default capabilities ({who} must not include {sorted(extra)})"
        if context.get("procMount", "Default") != "Default" and not relaxed:
            yield f'procMount ({who} must not set securityContext.procMount to "{context["procMount"]}")'
        for field, name in (("seccompProfile", "seccompProfile"), ("appArmorProfile", "forbidden AppArmor profile")):
            if context.get(field, {}).get("type") == "Unconfined":
                yield f'{name} ({who} must not set securityContext.{field}.type to "Unconfined")'
        options = context.get("seLinuxOptions", {})
        if options.get("user") or options.get("role"):
            yield f"seLinuxOptions ({who} set forbidden securityContext.seLinuxOptions)"
        for sysctl in context.get("sysctls", ()):
            if sysctl["name"] not in _SYSCTLS:
                yield f"forbidden sysctls ({sysctl['name']})"


def _restricted(spec: Object, relaxed: bool) -> Iterator[str]:
    pod = spec.get("securityContext", {})
    for volume in spec.get("volumes", ()):
        forbidden = set(volume) - _VOLUMES
        if forbidden:
            yield f'restricted volume types (volume "{volume["name"]}" uses {sorted(forbidden)})'
    for _, container in containers(dict(spec)):
        who, context = f'container "{container["name"]}"', container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)"
        capabilities = context.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()):
            yield f'unrestricted capabilities ({who} must set securityContext.capabilities.drop=["ALL"])'
        if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield f"unrestricted capabilities ({who} must not add {capabilities['add']})"
        if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True and not relaxed:
            yield f"runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)"
        if context.get("runAsUser", pod.get("runAsUser")) == 0 and not relaxed:
            yield f"runAsUser=0 (pod or {who} must not set runAsUser=0)"
        if context.get("seccompProfile", pod.get("seccompProfile")) is None:
            yield (
                f'seccompProfile (pod or {who} must set securityContext.seccompProfile.type to "RuntimeDefault" or '
                '"Localhost")'
            )
        if context.get("procMount", "Default") != "Default" and relaxed:
            yield f'procMount ({who} must not set securityContext.procMount to "{context["procMount"]}")'
