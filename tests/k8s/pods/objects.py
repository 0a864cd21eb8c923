"""What was applied, and the questions that a node asks of it. Pure: documents as JSON in, documents out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.k8s.pods.quantities import quantity

__all__ = ["Document", "Objects", "Workload", "selects"]

Document = dict[str, Any]
_EXPRESSIONS: dict[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
}


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects something with these labels. An empty one selects everything."""
    selector = selector or {}
    unknown = set(selector) - {"matchLabels", "matchExpressions"}
    if unknown:
        raise ValueError(f"a label selector has {', '.join(sorted(unknown))}, which is not understood here")
    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        _EXPRESSIONS[each["operator"]](labels.get(each["key"]), each.get("values") or ())
        for each in selector.get("matchExpressions") or ()
    )


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment, StatefulSet or Job: what pods it wants."""

    kind: str
    namespace: str
    name: str
    replicas: int
    template: Document
    spec: Document

    @property
    def revision(self) -> str:
        """Differs where the pods of this workload have to be replaced."""
        return hashlib.sha256(json.dumps(self.template, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"].get("labels") or {})

    def lacking(self) -> str:
        """A resource that this node does not have, so that the pods stay Pending; empty: there is none."""
        for container in self.template["spec"]["containers"]:
            resources = container.get("resources") or {}
            for name, value in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
                if "/" in name and quantity(value) > 0:
                    return f"Insufficient {name}"
        return ""


class Objects:
    """Documents by kind, namespace and name."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = list(documents)

    def of(self, kind: str, namespace: str | None = None) -> list[Document]:
        return [
            each
            for each in self.documents
            if each["kind"] == kind and namespace in (None, each["metadata"].get("namespace"))
        ]

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        return next((each for each in self.of(kind, namespace) if each["metadata"]["name"] == name), None)

    def labels_of(self, namespace: str) -> dict[str, str]:
        """Those of a namespace, with the name that every API server adds."""
        found = next((each for each in self.of("Namespace") if each["metadata"]["name"] == namespace), None)
        labels = (found or {"metadata": {}})["metadata"].get("labels") or {}
        return {"kubernetes.io/metadata.name": namespace, **labels}

    def workloads(self) -> list[Workload]:
        return list(self._workloads())

    def _workloads(self) -> Iterator[Workload]:
        for kind in ("Deployment", "StatefulSet", "Job"):
            for each in self.of(kind):
                meta, spec = each["metadata"], each["spec"]
                if kind == "Job":
                    replicas = int(spec.get("parallelism", 1))
                else:
                    replicas = max(int(spec.get("replicas", 1)), self._least(kind, meta["namespace"], meta["name"]))
                yield Workload(kind, meta["namespace"], meta["name"], replicas, spec["template"], spec)

    def _least(self, kind: str, namespace: str, name: str) -> int:
        """What an autoscaler keeps at least; 0 where the workload has none. It never scales further here."""
        for each in self.of("HorizontalPodAutoscaler", namespace):
            target = each["spec"]["scaleTargetRef"]
            if (target["kind"], target["name"]) == (kind, name):
                return int(each["spec"].get("minReplicas", 1))
        return 0
