"""Quotas and limit ranges: what a namespace holds, what one pod more would make of it, and what a pod is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from tests.k8s.apiserver.defaults import containers
from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.quantity import parse, text

__all__ = ["exceeded", "limited", "out_of_range", "usage"]

Object = Mapping[str, Any]
_FINISHED = ("Succeeded", "Failed")
_COUNTED = {
    "pods", "services", "configmaps", "secrets", "persistentvolumeclaims", "resourcequotas", "replicationcontrollers",
}  # fmt: skip
_COMPUTE = ("cpu", "memory", "ephemeral-storage")


def usage(kind: Kind, found: Object) -> dict[str, Decimal]:
    """What one object counts for, by the names of a quota."""
    used = {f"count/{kind.resource}": Decimal(1)}
    if not kind.group and kind.plural in _COUNTED:
        used[kind.plural] = Decimal(1)
    spec = found.get("spec", {})
    match kind.kind:
        case "Pod":
            if found.get("status", {}).get("phase") in _FINISHED:
                del used["pods"]
            else:
                used |= _compute(spec)
        case "Service":
            balanced = spec.get("type") == "LoadBalancer"
            used["services.loadbalancers"] = Decimal(balanced)
            used["services.nodeports"] = Decimal(
                len(spec.get("ports", ())) if balanced or spec["type"] == "NodePort" else 0
            )
        case "PersistentVolumeClaim":
            used["requests.storage"] = parse(spec["resources"]["requests"]["storage"])
    return used


def _compute(spec: Object) -> dict[str, Decimal]:
    used: dict[str, Decimal] = {}
    for kind in ("requests", "limits"):
        for _, container in containers({"containers": spec.get("containers", ())}):
            for name, value in container.get("resources", {}).get(kind, {}).items():
                key = f"{kind}.{name}"
                used[key] = used.get(key, Decimal(0)) + parse(value)
    for name in _COMPUTE:  # `cpu` alone means its requests
        if f"requests.{name}" in used:
            used[name] = used[f"requests.{name}"]
    return used


def exceeded(quota: Object, kind: Kind, found: Object, held: Iterable[Mapping[str, Decimal]]) -> str:
    """Why a quota does not let an object in, in the words of an API server; empty: it does."""
    hard, wanted = quota["spec"].get("hard", {}), usage(kind, found)
    name = quota["metadata"]["name"]
    if kind.kind == "Pod":
        asked = [key for key in hard if key in _COMPUTE or key.startswith(("requests.", "limits."))]
        lacking = sorted(key for key in asked if key not in wanted and key != "requests.storage")
        if lacking:
            return f"failed quota: {name}: must specify {','.join(lacking)}"
    totals: dict[str, Decimal] = {}
    for each in held:
        for key, value in each.items():
            totals[key] = totals.get(key, Decimal(0)) + value
    over = [
        key for key, value in wanted.items() if value and key in hard and totals.get(key, 0) + value > parse(hard[key])
    ]
    if not over:
        return ""

    def listed(values: Mapping[str, Any]) -> str:
        return ",".join(f"{key}={_shown(key, values)}" for key in sorted(over))

    return f"exceeded quota: {name}, requested: {listed(wanted)}, used: {listed(totals)}, limited: {listed(hard)}"


def _shown(key: str, values: Mapping[str, Any]) -> str:
    value = values.get(key, Decimal(0))
    return text(value, binary="memory" in key or "storage" in key) if isinstance(value, Decimal) else str(value)


def limited(pod: dict[str, Any], ranges: Iterable[Object]) -> dict[str, Any]:
    """The pod with what limit ranges give to containers that don't say it themselves."""
    for limit in (each for found in ranges for each in found["spec"]["limits"] if each["type"] == "Container"):
        for _, container in containers(pod["spec"]):
            resources = container.setdefault("resources", {})
            for kind, source in (("limits", "default"), ("requests", "defaultRequest")):
                for name, value in limit.get(source, {}).items():
                    resources.setdefault(kind, {}).setdefault(name, value)
    return pod


def out_of_range(pod: Object, ranges: Iterable[Object]) -> list[str]:
    """What of a pod a limit range forbids."""
    found = []
    for limit in (
        each for found_range in ranges for each in found_range["spec"]["limits"] if each["type"] == "Container"
    ):
        for _, container in containers(pod["spec"]):
            resources = container.get("resources", {})
            for name, most in limit.get("max", {}).items():
                value = resources.get("limits", {}).get(name)
                if value is None or parse(value) > parse(most):
                    found.append(f"maximum {name} usage per Container is {most}, but limit is {value or 'not set'}")
            for name, least in limit.get("min", {}).items():
                value = resources.get("requests", {}).get(name)
                if value is None or parse(value) < parse(least):
                    found.append(f"minimum {name} usage per Container is {least}, but request is {value or 'not set'}")
    return found
