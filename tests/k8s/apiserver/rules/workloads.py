"""What must hold for what makes pods, and for what counts and scales them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.problem import FieldProblem, required, wrong
from tests.k8s.apiserver.rules.pods import pod
from tests.k8s.apiserver.rules.selectors import matches, selector

__all__ = ["autoscaler", "budget", "cron_job", "job", "selecting"]

Object = Mapping[str, Any]
_CRON = re.compile(r"@(yearly|annually|monthly|weekly|daily|midnight|hourly|every \S+)|(\S+\s+){4}\S+")
_PERCENT = re.compile(r"[0-9]+%")


def selecting(found: Object) -> Iterator[FieldProblem]:
    """Deployment, StatefulSet, DaemonSet and ReplicaSet."""
    spec = found["spec"]
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if not spec["selector"]:
        yield wrong("spec.selector", {}, "empty selector is invalid for deployment")
    yield from selector("spec.selector", spec["selector"])
    if not matches(spec["selector"], labels):
        yield wrong("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    if spec.get("replicas", 0) < 0:
        yield wrong("spec.replicas", spec["replicas"], "must be greater than or equal to 0")
    rolling = spec.get("strategy", {}).get("rollingUpdate", {})
    if spec.get("strategy", {}).get("type") == "Recreate" and rolling:
        yield FieldProblem(
            "spec.strategy.rollingUpdate", "Forbidden", "may not be specified when strategy `type` is 'Recreate'"
        )
    for field, value in rolling.items():
        yield from _share(f"spec.strategy.rollingUpdate.{field}", value)
    if rolling and all(str(value).rstrip("%") == "0" for value in rolling.values()):
        yield wrong("spec.strategy.rollingUpdate.maxUnavailable", 0, "may not be 0 when `maxSurge` is 0")
    if spec.get("progressDeadlineSeconds", 1 << 30) <= spec.get("minReadySeconds", 0):
        yield wrong(
            "spec.progressDeadlineSeconds", spec["progressDeadlineSeconds"], "must be greater than minReadySeconds"
        )
    yield from pod(spec["template"]["spec"], "spec.template.spec", ("Always",))


def _share(path: str, value: Any) -> Iterator[FieldProblem]:
    if isinstance(value, str) and not _PERCENT.fullmatch(value):
        yield wrong(path, value, "a valid percent string must be a numeric string followed by an ending '%'")
    elif isinstance(value, int) and value < 0:
        yield wrong(path, value, "must be greater than or equal to 0")


def job(found: Object, path: str = "spec") -> Iterator[FieldProblem]:
    spec = found["spec"]
    for field in ("backoffLimit", "completions", "parallelism", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if spec.get(field, 0) < 0:
            yield wrong(f"{path}.{field}", spec[field], "must be greater than or equal to 0")
    yield from pod(spec["template"]["spec"], f"{path}.template.spec", ("OnFailure", "Never"))


def cron_job(found: Object) -> Iterator[FieldProblem]:
    schedule = found["spec"]["schedule"]
    if not _CRON.fullmatch(schedule):
        yield wrong("spec.schedule", schedule, "expected exactly 5 fields")
    yield from job(found["spec"]["jobTemplate"], "spec.jobTemplate.spec")


def budget(found: Object) -> Iterator[FieldProblem]:
    spec = found["spec"]
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield wrong("spec", "", "minAvailable and maxUnavailable cannot be both set")
    for field in ("minAvailable", "maxUnavailable"):
        if field in spec:
            yield from _share(f"spec.{field}", spec[field])
    if spec.get("unhealthyPodEvictionPolicy", "AlwaysAllow") not in ("AlwaysAllow", "IfHealthyBudget"):
        yield FieldProblem(
            "spec.unhealthyPodEvictionPolicy",
            "Unsupported value",
            'supported values: "AlwaysAllow", "IfHealthyBudget"',
            spec["unhealthyPodEvictionPolicy"],
        )
    yield from selector("spec.selector", spec.get("selector", {}))


def autoscaler(found: Object) -> Iterator[FieldProblem]:
    spec = found["spec"]
    if spec["maxReplicas"] < 1:
        yield wrong("spec.maxReplicas", spec["maxReplicas"], "must be greater than 0")
    if spec["minReplicas"] > spec["maxReplicas"]:
        yield wrong("spec.maxReplicas", spec["maxReplicas"], "must be greater than or equal to `minReplicas`")
    for index, metric in enumerate(spec.get("metrics", ())):
        source = metric["type"][0].lower() + metric["type"][1:]
        if source not in metric:
            yield required(f"spec.metrics[{index}].{source}", "must populate information for the given metric source")
    for direction, rules in spec.get("behavior", {}).items():
        if not rules.get("policies"):
            yield required(f"spec.behavior.{direction}.policies", "must specify at least one Policy")
