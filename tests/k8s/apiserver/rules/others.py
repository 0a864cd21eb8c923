"""What must hold for rights, quotas, limits, claims and Leases."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.problem import FieldProblem, required, wrong
from tests.k8s.apiserver.quantity import parse

__all__ = ["binding", "claim", "config", "lease", "limits", "quota", "role"]

Object = Mapping[str, Any]
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_MAX_INT32 = 2**31 - 1
_MAX_DATA = 1 << 20
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_RESOURCE = re.compile(r"[a-z0-9.-]+(/[a-z0-9.-]+)?")


def role(found: Object) -> Iterator[FieldProblem]:
    for index, rule in enumerate(found.get("rules", ()) or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if found["kind"] == "Role":
                yield wrong(f"{path}.nonResourceURLs", rule["nonResourceURLs"], "namespaced rules cannot have them")
            continue
        for field in ("apiGroups", "resources"):
            if not rule.get(field):
                yield required(f"{path}.{field}", "resource rules must supply at least one")


def binding(found: Object) -> Iterator[FieldProblem]:
    if found["roleRef"]["kind"] not in ("Role", "ClusterRole"):
        yield FieldProblem("roleRef.kind", "Unsupported value", value=found["roleRef"]["kind"])
    for index, subject in enumerate(found.get("subjects", ())):
        if subject["kind"] == "ServiceAccount" and not subject.get("namespace") and found["kind"] != "RoleBinding":
            yield required(f"subjects[{index}].namespace")
        if subject["kind"] not in ("User", "Group", "ServiceAccount"):
            yield FieldProblem(f"subjects[{index}].kind", "Unsupported value", value=subject["kind"])


def quota(found: Object) -> Iterator[FieldProblem]:
    for name, value in found["spec"].get("hard", {}).items():
        if not _RESOURCE.fullmatch(name):
            yield wrong(f"spec.hard[{name}]", name, "must be a standard resource for quota")
        if parse(value) < 0:
            yield wrong(f"spec.hard[{name}]", value, "must be greater than or equal to 0")


def limits(found: Object) -> Iterator[FieldProblem]:
    for index, each in enumerate(found["spec"]["limits"]):
        for name, request in each.get("defaultRequest", {}).items():
            limit = each.get("default", {}).get(name)
            if limit is not None and parse(request) > parse(limit):
                yield wrong(
                    f"spec.limits[{index}].defaultRequest[{name}]", request, f"is greater than default value {limit}"
                )


def claim(found: Object) -> Iterator[FieldProblem]:
    spec = found["spec"]
    if not spec.get("accessModes"):
        yield required("spec.accessModes", "at least 1 access mode is required")
    if "storage" not in spec.get("resources", {}).get("requests", {}):
        yield required("spec.resources[storage]")


def config(found: Object) -> Iterator[FieldProblem]:
    """ConfigMap and Secret."""
    size = 0
    for field in ("data", "binaryData"):
        for key, value in found.get(field, {}).items():
            size += len(value)
            if not _KEY.fullmatch(key):
                yield wrong(f"{field}[{key}]", key, "a valid config key must consist of alphanumerics, '-', '_' or '.'")
            if found["kind"] == "Secret":
                try:
                    base64.b64decode(value, validate=True)
                except (binascii.Error, ValueError):
                    yield wrong(f"{field}[{key}]", "<redacted>", "illegal base64 data")
    if size > _MAX_DATA:
        yield FieldProblem("data", "Too long", f"may not be more than {_MAX_DATA} bytes")


def lease(found: Object) -> Iterator[FieldProblem]:
    spec = found.get("spec", {})
    if spec.get("leaseDurationSeconds", 1) < 1:
        yield wrong("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if not 0 <= spec.get("leaseTransitions", 0) <= _MAX_INT32:
        yield wrong("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")
    for field in ("acquireTime", "renewTime"):
        if field in spec and not _MICRO_TIME.fullmatch(spec[field]):
            yield wrong(f"spec.{field}", spec[field], "must be an RFC 3339 time with microseconds")
