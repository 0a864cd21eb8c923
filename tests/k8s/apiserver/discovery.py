"""The documents by which a client learns what is served: /version, /api, /apis, and /openapi/v3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.k8s.apiserver.kinds import Kind, Kinds
from tests.k8s.apiserver.problem import Problem

__all__ = ["aggregated", "document"]

Object = dict[str, Any]
_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
    for name in ("fieldValidation", "dryRun", "fieldManager")
]


def document(kinds: Kinds, version: str, path: str) -> Object | None:
    """What stands at a path; None: no document of discovery."""
    words = [word for word in path.split("/") if word]
    match words:
        case ["version"]:
            major, minor = version.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{version}.0", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(kinds)}
        case ["apis", group]:
            found = [each for each in _groups(kinds) if each["name"] == group]
            return _served({"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else None)
        case ["api", one]:
            return _served(_resources(kinds, one))
        case ["apis", group, one]:
            return _served(_resources(kinds, f"{group}/{one}"))
        case ["openapi", "v3"]:
            return {
                "paths": {
                    _base(each): {"serverRelativeURL": f"/openapi/v3/{_base(each)}"} for each in kinds.group_versions()
                }
            }
        case ["openapi", "v3", *rest]:
            return _openapi(kinds, version, "/".join(rest))
    return None


def aggregated(kinds: Kinds, path: str) -> Object | None:
    """All groups, versions and resources of /api or /apis in one document (apidiscovery.k8s.io/v2)."""
    core = path.strip("/") == "api"
    if not core and path.strip("/") != "apis":
        return None
    groups: dict[str, Object] = {}
    for group_version in kinds.group_versions():
        group, _, version = group_version.rpartition("/")
        if bool(group) != core:
            item = groups.setdefault(group, {"metadata": {"name": group} if group else {}, "versions": []})
            resources = [_aggregated(kind) for kind in _of(kinds, group_version)]
            item["versions"].append({"version": version, "resources": resources, "freshness": "Current"})
    items = list(groups.values())
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _served(found: Object | None) -> Object:
    if found is None:
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    return found


def _of(kinds: Kinds, group_version: str) -> list[Kind]:
    return [kind for kind in kinds if kind.group_version == group_version]


def _base(group_version: str) -> str:
    return f"apis/{group_version}" if "/" in group_version else f"api/{group_version}"


def _groups(kinds: Kinds) -> list[Object]:
    groups: dict[str, list[Object]] = {}
    for group_version in kinds.group_versions():
        group, slash, version = group_version.rpartition("/")
        if slash:
            groups.setdefault(group, []).append({"groupVersion": group_version, "version": version})
    return [{"name": name, "versions": made, "preferredVersion": made[0]} for name, made in groups.items()]


def _resources(kinds: Kinds, group_version: str) -> Object | None:
    found = _of(kinds, group_version)
    if not found:
        return None
    listed = [each for kind in found for each in _listed(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def _listed(kind: Kind) -> Iterable[Object]:
    yield {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        "shortNames": list(kind.short),
    }
    for sub in kind.subresources:
        made, verbs = _sub(kind, sub)
        yield {
            "name": f"{kind.plural}/{sub}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "verbs": verbs,
            **made,
        }


def _sub(kind: Kind, sub: str) -> tuple[Object, list[str]]:
    if sub == "scale":
        return {"group": "autoscaling", "version": "v1", "kind": "Scale"}, ["get", "patch", "update"]
    if sub == "token":
        return {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}, ["create"]
    return {"kind": kind.kind}, ["get", "patch", "update"]


def _aggregated(kind: Kind) -> Object:
    subs = []
    for sub in kind.subresources:
        made, verbs = _sub(kind, sub)
        gvk = {
            "group": made.get("group", kind.group),
            "version": made.get("version", kind.version),
            "kind": made["kind"],
        }
        subs.append({"subresource": sub, "responseKind": gvk, "verbs": verbs})
    return {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
        "shortNames": list(kind.short),
        "subresources": subs,
    }


def _openapi(kinds: Kinds, version: str, base: str) -> Object:
    """Without schemas: that a kind takes `fieldValidation` and `dryRun` is all that kubectl looks for."""
    found = [kind for kind in kinds if _base(kind.group_version) == base]
    if not found:
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    paths: Object = {}
    for kind in found:
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        operation = {
            "x-kubernetes-group-version-kind": gvk,
            "parameters": _PARAMETERS,
            "responses": {"200": {"description": "OK"}},
        }
        scope = "/namespaces/{namespace}" if kind.namespaced else ""
        paths[f"/{base}{scope}/{kind.plural}"] = {"post": operation}
        paths[f"/{base}{scope}/{kind.plural}/{{name}}"] = {"put": operation, "patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": f"v{version}.0"}, "paths": paths}
