"""The custom resources that components use, and the npm packages that have their projects' schemas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CustomKind:
    """A kind that a project's CRD defines."""

    group: str
    version: str
    kind: str
    package: str = ""
    """Of npm, with the version; empty: npm has none."""


_CERT_MANAGER = "@kubernetes-models/cert-manager@4.4.4"
_KEDA = "@kubernetes-models/keda@0.4.2"
_PROMETHEUS = "@kubernetes-models/prometheus-operator@4.4.4"
KINDS = (
    CustomKind("cert-manager.io", "v1", "ClusterIssuer", _CERT_MANAGER),
    CustomKind("cert-manager.io", "v1", "Certificate", _CERT_MANAGER),
    CustomKind("keda.sh", "v1alpha1", "ScaledObject", _KEDA),
    CustomKind("monitoring.coreos.com", "v1", "PodMonitor", _PROMETHEUS),
    CustomKind("monitoring.coreos.com", "v1", "PrometheusRule", _PROMETHEUS),
    CustomKind("kueue.x-k8s.io", "v1beta2", "ResourceFlavor"),
    CustomKind("kueue.x-k8s.io", "v1beta2", "ClusterQueue"),
    CustomKind("kueue.x-k8s.io", "v1beta2", "LocalQueue"),
    CustomKind("ray.io", "v1", "RayJob"),
)
CUSTOM = tuple(dict.fromkeys(kind.group for kind in KINDS))
"""The groups."""
