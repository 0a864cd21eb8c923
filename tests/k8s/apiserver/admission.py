"""What an object meets between its validation and the store: its namespace, accounts, pod security, quotas, limits.

Enforced on pods, as in a cluster: whoever makes a Deployment is only warned, and its pods fail to come.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tests.k8s.apiserver.defaults import template_of
from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.paths import Route
from tests.k8s.apiserver.podsecurity import LABEL, LEVELS, violations
from tests.k8s.apiserver.problem import Problem, forbidden, wrong
from tests.k8s.apiserver.quantity import text
from tests.k8s.apiserver.quotas import exceeded, limited, out_of_range, usage
from tests.k8s.apiserver.store import Store

__all__ = ["Admission"]

Object = dict[str, Any]
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 3607
_PRIORITIES = ("system-cluster-critical", "system-node-critical")


class Admission:
    """Looks at the store, and changes nothing but the object that it is given."""

    def __init__(self, store: Store, version: str) -> None:
        self._store = store
        self._version = version

    def namespace(self, route: Route, *, new: bool) -> Object:
        """That of a write, empty for a kind without. 404 where it is not there, 403 where it is going away."""
        if not route.kind.namespaced:
            return {}
        found = self._store.get(("", "namespaces", "", route.namespace))
        if found is None:
            details = {"name": route.namespace, "kind": "namespaces"}
            raise Problem(404, "NotFound", f'namespaces "{route.namespace}" not found', details)
        if new and found["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {route.namespace} because it is being terminated"
            raise forbidden(route.kind, route.name, why)
        return found

    def mutate(self, route: Route, found: Object) -> None:
        """What is filled in from other objects."""
        if route.kind.kind != "Pod":
            return
        limited(found, self._ranges(route.namespace))
        spec = found["spec"]
        account = spec.setdefault("serviceAccountName", "default")
        held = self._store.get(("", "serviceaccounts", route.namespace, account))
        if held is None:
            why = f'error looking up service account {route.namespace}/{account}: serviceaccount "{account}" not found'
            raise forbidden(route.kind, found["metadata"]["name"], why)
        mounts = spec.get("automountServiceAccountToken", held.get("automountServiceAccountToken", True))
        if mounts:
            _mount_token(spec)

    def review(self, route: Route, found: Object, old: Object | None, namespace: Object) -> list[str]:
        """Raises 403 or 422 where the object may not be; returns warnings."""
        kind = route.kind
        if kind.kind == "Namespace":
            _levels(found)
        template = template_of(kind.kind, found)
        if template is None or kind.custom:
            self._quota(route, found, old)
            return []
        labels = namespace["metadata"].get("labels", {})
        if kind.kind == "Pod":
            self._pod(route, found, labels, new=old is None)
        self._quota(route, found, old)
        level = labels.get(f"{LABEL}warn", "privileged")
        broken = violations(level, template["spec"], self._version)
        listed = ", ".join(broken)
        return [f'would violate PodSecurity "{level}:latest": {listed}'] if broken else []

    def _pod(self, route: Route, found: Object, labels: dict[str, str], *, new: bool) -> None:
        name, spec = found["metadata"]["name"], found["spec"]
        level = labels.get(f"{LABEL}enforce", "privileged")
        broken = violations(level, spec, self._version)
        if broken:
            raise forbidden(route.kind, name, f'violates PodSecurity "{level}:latest": {", ".join(broken)}')
        if not new:
            return
        runtime = spec.get("runtimeClassName")
        if runtime and ("node.k8s.io", "runtimeclasses", "", runtime) not in self._store:
            raise forbidden(route.kind, name, f'pod rejected: RuntimeClass "{runtime}" not found')
        priority = spec.get("priorityClassName")
        known = (
            priority in (None, *_PRIORITIES) or ("scheduling.k8s.io", "priorityclasses", "", priority) in self._store
        )
        if not known:
            raise forbidden(route.kind, name, f"no PriorityClass with name {priority} was found")
        over = out_of_range(found, self._ranges(route.namespace))
        if over:
            raise forbidden(route.kind, name, ", ".join(over))

    def _quota(self, route: Route, found: Object, old: Object | None) -> None:
        if old is not None or not route.kind.namespaced:
            return
        for quota in self._store.all("", "resourcequotas", route.namespace):
            held = [usage(kind, each) for kind, each in self._everything(route.namespace)]
            why = exceeded(quota, route.kind, found, held)
            if why:
                raise forbidden(route.kind, found["metadata"]["name"], why)

    def used(self, quota: Object) -> Object:
        """`status` of a quota: what its namespace holds of what it limits."""
        hard = quota["spec"].get("hard", {})
        totals = dict.fromkeys(hard, Decimal(0))
        for kind, each in self._everything(quota["metadata"]["namespace"]):
            for key, value in usage(kind, each).items():
                if key in totals:
                    totals[key] += value
        shown = {key: text(value, binary="memory" in key or "storage" in key) for key, value in totals.items()}
        return {"hard": hard, "used": shown}

    def _everything(self, namespace: str) -> Iterator[tuple[Kind, Object]]:
        for key in self._store.keys(lambda key: key[2] == namespace):
            found = self._store.get(key)
            if found is not None:
                yield Kind(key[0], "", found["kind"], key[1]), found

    def _ranges(self, namespace: str) -> list[Object]:
        return list(self._store.all("", "limitranges", namespace))


def _levels(namespace: Object) -> None:
    for key, value in namespace["metadata"].get("labels", {}).items():
        mode = key.removeprefix(LABEL)
        if key.startswith(LABEL) and not mode.endswith("-version") and value not in LEVELS:
            field = wrong(f"metadata.labels[{key}]", value, f"must be one of {', '.join(LEVELS)}")
            raise Problem(422, "Invalid", f'Namespace "{namespace["metadata"]["name"]}" is invalid: {field}')


def _mount_token(spec: Object) -> None:
    """The volume with token, certificate and namespace that a pod gets unless it doesn't want it."""
    name = "kube-api-access"
    if any(volume["name"] == name for volume in spec.get("volumes", ())):
        return
    sources = [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    spec.setdefault("volumes", []).append({"name": name, "projected": {"sources": sources, "defaultMode": 420}})
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        mounts = container.setdefault("volumeMounts", [])
        mounts.append({"name": name, "readOnly": True, "mountPath": _TOKEN_PATH})
