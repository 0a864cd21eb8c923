"""What a pod becomes: the sandbox that holds its namespaces, and the arguments of `podman run` for its container.

Pure: a pod's spec in, plain data out. What a field means here and would not mean in a cluster is an error, never passed
over: ValueError names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.k8s.pods.objects import Document
from tests.k8s.pods.quantities import quantity

__all__ = ["ContainerPlan", "Probe", "Volume", "plan_container", "plan_sandbox"]

USER_NAMESPACE_BASE = 1_000_000
"""First id of the node that pods with `hostUsers: false` are mapped to, 65,536 each."""
_IDS = 65_536
_POD_FIELDS = frozenset(
    {
        "appArmorProfile", "automountServiceAccountToken", "containers", "dnsPolicy", "enableServiceLinks", "hostUsers",
        "hostname", "imagePullSecrets", "nodeSelector", "affinity", "preemptionPolicy", "priority", "priorityClassName",
        "restartPolicy", "runtimeClassName", "schedulerName", "securityContext", "serviceAccount", "serviceAccountName",
        "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
    }
)  # fmt: skip
_CONTAINER_FIELDS = frozenset(
    {
        "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
        "readinessProbe", "resources", "securityContext", "startupProbe", "terminationMessagePath",
        "terminationMessagePolicy", "volumeMounts", "workingDir",
    }
)  # fmt: skip
_VOLUMES = ("emptyDir", "configMap", "secret", "persistentVolumeClaim", "projected")


@dataclass(frozen=True, slots=True)
class Probe:
    """A gRPC probe, with Kubernetes' defaults. Times in seconds."""

    port: int
    service: str
    initial_delay_s: float
    period_s: float
    timeout_s: float
    failure_threshold: int
    success_threshold: int

    @classmethod
    def read(cls, spec: Document | None) -> Probe | None:
        if spec is None:
            return None
        if "grpc" not in spec:
            raise ValueError(f"a probe has {', '.join(spec)}; only gRPC probes are understood here")
        return cls(
            port=int(spec["grpc"]["port"]),
            service=spec["grpc"].get("service") or "",
            initial_delay_s=float(spec.get("initialDelaySeconds", 0)),
            period_s=float(spec.get("periodSeconds", 10)),
            timeout_s=float(spec.get("timeoutSeconds", 1)),
            failure_threshold=int(spec.get("failureThreshold", 3)),
            success_threshold=int(spec.get("successThreshold", 1)),
        )


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of files that the node keeps as a folder; those in memory are part of the arguments."""

    name: str
    kind: str
    """emptyDir, configMap, secret, persistentVolumeClaim or projected."""
    source: Document = field(hash=False)
    mount_path: str = ""
    read_only: bool = False
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """How the one container of a pod is run."""

    image: str
    options: tuple[str, ...]
    """Options of `podman run` that come from the spec alone."""
    command: tuple[str, ...]
    """What follows the image."""
    volumes: tuple[Volume, ...]
    startup: Probe | None
    readiness: Probe | None
    liveness: Probe | None
    pre_stop_s: float
    grace_s: float
    restart: bool
    """Whether it is started again when it ends."""
    group: int | None
    """The group that volumes belong to (fsGroup)."""
    ids_from: int
    """The node's id of the pod's root; 0 without a user namespace."""


def plan_sandbox(spec: Document, index: int) -> list[str]:
    """Options of `podman run` for what holds the pod's namespaces. `index` tells the user namespaces apart."""
    options = ["--network", "none"]
    if spec.get("hostUsers") is False:
        mapping = f"0:{_base(spec, index)}:{_IDS}"
        options += ["--uidmap", mapping, "--gidmap", mapping]
    return options


def plan_container(spec: Document, *, index: int, environment: Mapping[str, str], seccomp_folder: str) -> ContainerPlan:
    """`seccomp_folder` has `runtime-default.json` and, in `profiles/`, what `Localhost` names."""
    _known("a pod", spec, _POD_FIELDS)
    if len(spec["containers"]) != 1:
        raise ValueError(f"a pod has {len(spec['containers'])} containers, must have 1 here")
    (container,) = spec["containers"]
    _known(f"container {container['name']}", container, _CONTAINER_FIELDS)
    security = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
    volumes, memory = _volumes(spec, container)
    command = list(container.get("command") or ())
    options = [*_rights(security, seccomp_folder), *_resources(container), *memory]
    for name, value in environment.items():
        options += ["--env", f"{name}={value}"]
    if command:
        options += ["--entrypoint", command[0]]
    if container.get("workingDir"):
        options += ["--workdir", container["workingDir"]]
    return ContainerPlan(
        image=container["image"],
        options=tuple(options),
        command=(*command[1:], *(container.get("args") or ())),
        volumes=tuple(volumes),
        startup=Probe.read(container.get("startupProbe")),
        readiness=Probe.read(container.get("readinessProbe")),
        liveness=Probe.read(container.get("livenessProbe")),
        pre_stop_s=_pre_stop(container),
        grace_s=float(spec.get("terminationGracePeriodSeconds", 30)),
        restart=spec.get("restartPolicy", "Always") == "Always",
        group=security.get("fsGroup"),
        ids_from=_base(spec, index),
    )


def _base(spec: Document, index: int) -> int:
    return USER_NAMESPACE_BASE + index * _IDS if spec.get("hostUsers") is False else 0


def _rights(security: Document, seccomp_folder: str) -> list[str]:
    if security.get("privileged"):
        raise ValueError("securityContext.privileged is true, which nothing here may be")
    user = security.get("runAsUser", 0)
    if security.get("runAsNonRoot") and user == 0:
        raise ValueError("securityContext.runAsNonRoot is true, and runAsUser is not set or 0")
    options = ["--user", f"{user}:{security.get('runAsGroup', 0)}"]
    capabilities = security.get("capabilities") or {}
    for each in capabilities.get("drop") or ():
        options += ["--cap-drop", each]
    for each in capabilities.get("add") or ():
        options += ["--cap-add", each]
    if security.get("allowPrivilegeEscalation") is False:
        options += ["--security-opt", "no-new-privileges"]
    if security.get("readOnlyRootFilesystem"):
        options += ["--read-only", "--read-only-tmpfs=false"]
    if security.get("procMount") == "Unmasked":
        options += ["--security-opt", "unmask=ALL"]
    for each in security.get("sysctls") or ():
        options += ["--sysctl", f"{each['name']}={each['value']}"]
    return [*options, "--security-opt", f"seccomp={_seccomp(security, seccomp_folder)}"]


def _seccomp(security: Document, folder: str) -> str:
    profile = security.get("seccompProfile") or {"type": "Unconfined"}
    match profile["type"]:
        case "Unconfined":
            return "unconfined"
        case "RuntimeDefault":
            return f"{folder}/runtime-default.json"
        case "Localhost":
            return f"{folder}/profiles/{profile['localhostProfile']}"
        case other:
            raise ValueError(f"seccompProfile.type is {other!r}, must be RuntimeDefault, Localhost or Unconfined")


def _resources(container: Document) -> list[str]:
    limits = (container.get("resources") or {}).get("limits") or {}
    options = []
    if "memory" in limits:
        # Swap counts as memory does; nodes of Kubernetes have none.
        options += [f"--memory={quantity(limits['memory']):.0f}", f"--memory-swap={quantity(limits['memory']):.0f}"]
    if "cpu" in limits:
        options.append(f"--cpus={quantity(limits['cpu']):g}")
    return options


def _volumes(spec: Document, container: Document) -> tuple[list[Volume], list[str]]:
    """Volumes that are folders of the node, and the options of those in memory."""
    known = {volume["name"]: volume for volume in spec.get("volumes") or ()}
    folders: list[Volume] = []
    memory: list[str] = []
    for mount in container.get("volumeMounts") or ():
        volume = known[mount["name"]]
        kind = next((each for each in _VOLUMES if each in volume), None)
        if kind is None:
            raise ValueError(f"volume {mount['name']} is none of {', '.join(_VOLUMES)}")
        source = volume[kind] or {}
        if kind == "emptyDir" and source.get("medium") == "Memory":
            size = f",size={quantity(source['sizeLimit']):.0f}" if source.get("sizeLimit") else ""
            memory += ["--tmpfs", f"{mount['mountPath']}:rw,exec,nosuid,nodev,mode=1777{size}"]
            continue
        read_only = bool(mount.get("readOnly")) or kind in ("configMap", "secret", "projected")
        folders.append(Volume(mount["name"], kind, source, mount["mountPath"], read_only, mount.get("subPath", "")))
    return folders, memory


def _pre_stop(container: Document) -> float:
    hook: Document = (container.get("lifecycle") or {}).get("preStop") or {}
    if set(hook) - {"sleep"} or set(container.get("lifecycle") or {}) - {"preStop"}:
        raise ValueError("lifecycle has a hook that is not preStop.sleep, which is all that is understood here")
    return float(hook.get("sleep", {}).get("seconds", 0))


def _known(what: str, document: Mapping[str, Any], fields: frozenset[str]) -> None:
    unknown: Sequence[str] = sorted(name for name in set(document) - fields if document[name] not in (None, [], {}))
    if unknown:
        raise ValueError(f"{what} has {', '.join(unknown)}, which is not understood here")
