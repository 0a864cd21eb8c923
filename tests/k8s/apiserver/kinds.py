"""The kinds that an API server serves: those of Kubernetes that a deployment meets, and those that CRDs add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Kind", "Kinds"]

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind, in the one version in which it is served."""

    group: str
    """Empty: the core group."""
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    schema: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)
    """Of a custom resource: the CRD's openAPIV3Schema."""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As it stands in messages: `deployments.apps`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def custom(self) -> bool:
        return self.schema is not None


def _core(kind: str, plural: str, *short: str, namespaced: bool = True, sub: tuple[str, ...] = ()) -> Kind:
    return Kind("", "v1", kind, plural, namespaced, short, sub)


_STATUS = ("status",)
_SCALED = ("scale", "status")
_APPS, _BATCH, _RBAC = "apps", "batch", "rbac.authorization.k8s.io"
BUILT_IN = (
    _core("Namespace", "namespaces", "ns", namespaced=False, sub=_STATUS),
    _core("Node", "nodes", "no", namespaced=False, sub=_STATUS),
    _core("PersistentVolume", "persistentvolumes", "pv", namespaced=False, sub=_STATUS),
    _core("ConfigMap", "configmaps", "cm"),
    _core("Secret", "secrets"),
    _core("Service", "services", "svc", sub=_STATUS),
    _core("ServiceAccount", "serviceaccounts", "sa", sub=("token",)),
    _core("Pod", "pods", "po", sub=_STATUS),
    _core("PersistentVolumeClaim", "persistentvolumeclaims", "pvc", sub=_STATUS),
    _core("ResourceQuota", "resourcequotas", "quota", sub=_STATUS),
    _core("LimitRange", "limitranges", "limits"),
    _core("Endpoints", "endpoints", "ep"),
    _core("Event", "events", "ev"),
    Kind(_APPS, "v1", "Deployment", "deployments", True, ("deploy",), _SCALED),
    Kind(_APPS, "v1", "StatefulSet", "statefulsets", True, ("sts",), _SCALED),
    Kind(_APPS, "v1", "ReplicaSet", "replicasets", True, ("rs",), _SCALED),
    Kind(_APPS, "v1", "DaemonSet", "daemonsets", True, ("ds",), _STATUS),
    Kind(_BATCH, "v1", "Job", "jobs", True, (), _STATUS),
    Kind(_BATCH, "v1", "CronJob", "cronjobs", True, ("cj",), _STATUS),
    Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", True, ("hpa",), _STATUS),
    Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True, ("pdb",), _STATUS),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", True, ("netpol",)),
    Kind("networking.k8s.io", "v1", "Ingress", "ingresses", True, ("ing",), _STATUS),
    Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    Kind("coordination.k8s.io", "v1", "Lease", "leases"),
    Kind(_RBAC, "v1", "Role", "roles"),
    Kind(_RBAC, "v1", "RoleBinding", "rolebindings"),
    Kind(_RBAC, "v1", "ClusterRole", "clusterroles", False),
    Kind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", False),
    Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", False, ("sc",)),
    Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, ("pc",)),
    Kind("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", False),
    Kind(
        "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False, ("crd",), _STATUS
    ),
    Kind(
        "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False, (), (), ("create",)
    ),
)


class Kinds:
    """Every kind that is served now. CRDs come and go."""

    def __init__(self) -> None:
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._kinds.get((group, version, plural))

    def named(self, kind: str) -> Kind:
        """The built-in kind of that name; KeyError where there is none."""
        return next((each for each in BUILT_IN if each.kind == kind), None) or _unknown(kind)

    def group_versions(self) -> list[str]:
        return list(dict.fromkeys(kind.group_version for kind in self))

    def define(self, crd: Mapping[str, Any]) -> None:
        """Serves what a CustomResourceDefinition defines."""
        self.forget(crd)
        spec = crd["spec"]
        names = spec["names"]
        for version in spec["versions"]:
            if version.get("served"):
                kind = Kind(
                    spec["group"],
                    version["name"],
                    names["kind"],
                    names["plural"],
                    spec["scope"] == "Namespaced",
                    tuple(names.get("shortNames", ())),
                    tuple(version.get("subresources", {})),
                    VERBS,
                    version["schema"]["openAPIV3Schema"],
                )
                self._kinds[(kind.group, kind.version, kind.plural)] = kind

    def forget(self, crd: Mapping[str, Any]) -> None:
        """Serves it no more."""
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        self._kinds = {key: kind for key, kind in self._kinds.items() if (key[0], key[2]) != (group, plural)}


def _unknown(kind: str) -> Kind:
    raise KeyError(kind)
