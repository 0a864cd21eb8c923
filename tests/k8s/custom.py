"""The custom resources that components use: definitions of them for the tests' API server, and their real schemas.

The definitions take any `spec`: they are here so that kubectl finds the kinds. What a `spec` may hold is checked by the
projects' own schemas, which npm has of most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CUSTOM", "KINDS", "CustomKind", "definitions"]


@dataclass(frozen=True, slots=True)
class CustomKind:
    """A kind that a project's CRD defines."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    package: str = ""
    """Of npm, with the version; empty: npm has none."""


_CERT_MANAGER = "@kubernetes-models/cert-manager@4.4.4"
_KEDA = "@kubernetes-models/keda@0.4.2"
_PROMETHEUS = "@kubernetes-models/prometheus-operator@4.4.4"
KINDS = (
    CustomKind("cert-manager.io", "v1", "ClusterIssuer", "clusterissuers", False, _CERT_MANAGER),
    CustomKind("cert-manager.io", "v1", "Certificate", "certificates", True, _CERT_MANAGER),
    CustomKind("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects", True, _KEDA),
    CustomKind("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", True, _PROMETHEUS),
    CustomKind("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", True, _PROMETHEUS),
    CustomKind("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", False),
    CustomKind("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "clusterqueues", False),
    CustomKind("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues", True),
    CustomKind("ray.io", "v1", "RayJob", "rayjobs", True),
)
CUSTOM = tuple(dict.fromkeys(kind.group for kind in KINDS))
"""The groups."""


def definitions() -> list[dict[str, Any]]:
    """A CustomResourceDefinition of each."""
    return [_definition(kind) for kind in KINDS]


def _definition(kind: CustomKind) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "listKind": f"{kind.kind}List",
            },
            "versions": [version],
        },
    }
