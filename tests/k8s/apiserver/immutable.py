"""Fields that a later write may not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.problem import FieldProblem, wrong

__all__ = ["changed"]

Object = Mapping[str, Any]
_FIXED = {
    "Deployment": ("spec.selector",),
    "DaemonSet": ("spec.selector",),
    "ReplicaSet": ("spec.selector",),
    "Job": ("spec.selector", "spec.template", "spec.completionMode"),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
    "Secret": ("type",),
    "StorageClass": ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    "PriorityClass": ("value",),
    "RuntimeClass": ("handler",),
}
_STATEFUL = ("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds")
_STATEFUL_ALSO = ("persistentVolumeClaimRetentionPolicy",)
_POD_MAY = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds")


def changed(kind: str, old: Object, new: Object) -> Iterator[FieldProblem]:
    """Each fixed field that `new` has otherwise than `old`."""
    for path in _FIXED.get(kind, ()):
        if _at(old, path) != _at(new, path):
            yield wrong(path, _at(new, path), "field is immutable")
    match kind:
        case "Service":
            yield from _service(old["spec"], new["spec"])
        case "StatefulSet":
            yield from _others(
                old["spec"], new["spec"], (*_STATEFUL, *_STATEFUL_ALSO), "spec", "updates to statefulset"
            )
        case "PersistentVolumeClaim":
            # A claim may grow; everything else stands.
            yield from _others(old["spec"], new["spec"], ("resources", "volumeName"), "spec", "updates to the claim")
        case "Pod":
            yield from _pod(old["spec"], new["spec"])
        case "ConfigMap" | "Secret" if old.get("immutable"):
            yield from _others(old, new, ("metadata",), "data", "updates when `immutable` is set,")


def _service(old: Object, new: Object) -> Iterator[FieldProblem]:
    for field in ("clusterIP", "clusterIPs"):
        if old.get(field) and old.get(field) != new.get(field) and new.get("type") != "ExternalName":
            yield wrong(f"spec.{field}", new.get(field), "may not change once set")


def _pod(old: Object, new: Object) -> Iterator[FieldProblem]:
    def plain(spec: Object) -> dict[str, Any]:
        made = {key: value for key, value in spec.items() if key not in _POD_MAY}
        made["containers"] = [{**each, "image": ""} for each in spec["containers"]]
        return made

    if plain(old) != plain(new):
        yield FieldProblem("spec", "Forbidden", "pod updates may not change fields other than images and tolerations")


def _others(old: Object, new: Object, may: tuple[str, ...], path: str, what: str) -> Iterator[FieldProblem]:
    keys = [key for key in sorted({*old, *new}) if key not in may and old.get(key) != new.get(key)]
    if keys:
        allowed = ", ".join(f"'{each}'" for each in may)
        yield FieldProblem(path, "Forbidden", f"{what} fields other than {allowed} are forbidden ({', '.join(keys)})")


def _at(found: Object, path: str) -> Any:
    value: Any = found
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
