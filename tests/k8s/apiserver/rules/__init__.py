"""Validation beyond schemas: what an API server checks of an object as a whole, kind by kind.

Only what has been seen to matter to deployments like ours. What is not here is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.names import metadata
from tests.k8s.apiserver.problem import FieldProblem
from tests.k8s.apiserver.rules import network, others, workloads
from tests.k8s.apiserver.rules.pods import pod

__all__ = ["problems"]

Rule = Callable[[Mapping[str, Any]], Iterator[FieldProblem]]


def _pod(found: Mapping[str, Any]) -> Iterator[FieldProblem]:
    return pod(found["spec"], "spec")


_RULES: dict[str, Rule] = {
    "Pod": _pod,
    "Deployment": workloads.selecting,
    "StatefulSet": workloads.selecting,
    "DaemonSet": workloads.selecting,
    "ReplicaSet": workloads.selecting,
    "Job": workloads.job,
    "CronJob": workloads.cron_job,
    "PodDisruptionBudget": workloads.budget,
    "HorizontalPodAutoscaler": workloads.autoscaler,
    "Service": network.service,
    "NetworkPolicy": network.policy,
    "Role": others.role,
    "ClusterRole": others.role,
    "RoleBinding": others.binding,
    "ClusterRoleBinding": others.binding,
    "ResourceQuota": others.quota,
    "LimitRange": others.limits,
    "PersistentVolumeClaim": others.claim,
    "ConfigMap": others.config,
    "Secret": others.config,
    "Lease": others.lease,
}


def problems(found: Mapping[str, Any], *, custom: bool) -> list[FieldProblem]:
    """Everything that is wrong with an object that has passed its schema. `custom`: a CRD made its kind."""
    kind = str(found["kind"])
    rule = None if custom else _RULES.get(kind)
    return [*metadata(kind, found["metadata"]), *(rule(found) if rule else ())]
