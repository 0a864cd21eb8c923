"""How an object comes into the store: decoded, filled in, checked, admitted, and given its metadata."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.k8s.apiserver import managed
from tests.k8s.apiserver.admission import Admission
from tests.k8s.apiserver.decode import check
from tests.k8s.apiserver.defaults import defaulted
from tests.k8s.apiserver.immutable import changed
from tests.k8s.apiserver.kinds import Kind, Kinds
from tests.k8s.apiserver.paths import Route
from tests.k8s.apiserver.problem import FieldProblem, Problem, already_exists, bad_request, conflict, invalid, wrong
from tests.k8s.apiserver.rules import problems
from tests.k8s.apiserver.schemas import Schemas
from tests.k8s.apiserver.store import Store

__all__ = ["Options", "Writer"]

Object = dict[str, Any]
_KEPT = ("uid", "creationTimestamp", "generation", "namespace", "deletionTimestamp")
_GENERATED = ("apps", "batch", "policy", "networking.k8s.io", "apiextensions.k8s.io")
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(slots=True)
class Options:
    """What the query of a write says."""

    dry_run: bool = False
    validation: str = "Warn"
    manager: str = "unknown"
    force: bool = False
    warnings: list[str] = field(default_factory=list)


class Writer:
    """Turns what a client sends into what is stored."""

    def __init__(
        self, store: Store, kinds: Kinds, schemas: Schemas, *, now: Callable[[], str], new_uid: Callable[[], str]
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._schemas = schemas
        self._admission = Admission(store, schemas.version)
        self._now = now
        self._new_uid = new_uid
        self._addresses = 0

    def create(self, route: Route, sent: Object, options: Options, *, by_apply: bool = False) -> Object:
        """A new object. The route needs no name: the object has one, or `generateName`."""
        meta = sent.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + self._new_uid().replace("-", "")[-5:]
        route = Route(route.kind, route.namespace, str(meta.get("name", "")))
        namespace = self._admission.namespace(route, new=True)
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if route.key in self._store:
            raise already_exists(route.kind, route.name)
        made = self._decoded(route, sent, options)
        meta = made["metadata"]
        if "status" in route.kind.subresources:
            made.pop("status", None)
        meta |= {"uid": self._new_uid(), "creationTimestamp": self._now()}
        if route.kind.group in _GENERATED or route.kind.custom:
            meta["generation"] = 1
        self._first(route.kind, made)
        return self._finish(route, made, None, namespace, options, by_apply=by_apply)

    def update(self, route: Route, sent: Object, old: Object, options: Options, *, by_apply: bool = False) -> Object:
        """Replaces an object, or a part of one where the route has a subresource."""
        namespace = self._admission.namespace(route, new=False)
        made = self._decoded(route, sent, options)
        meta, before = made["metadata"], old["metadata"]
        if meta.get("name") != before["name"]:
            raise bad_request(f"the name of the object ({meta.get('name')}) does not match the name on the URL")
        if meta.get("uid", before["uid"]) != before["uid"]:
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {before['uid']}"
            raise conflict(route.kind, route.name, why)
        if meta.get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
            raise conflict(route.kind, route.name, _MODIFIED)
        if route.subresource == "status":
            made = {
                **old,
                "metadata": {**before, "managedFields": before.get("managedFields", [])},
                "status": made.get("status", {}),
            }
            meta = made["metadata"]
        elif "status" in route.kind.subresources:
            made.pop("status", None)
            if "status" in old:
                made["status"] = old["status"]
        for key in _KEPT:
            meta.pop(key, None)
            if key in before:
                meta[key] = before[key]
        self._carried(route.kind, made, old)
        if "generation" in meta and _desired(made) != _desired(old):
            meta["generation"] += 1
        return self._finish(route, made, old, namespace, options, by_apply=by_apply)

    def _decoded(self, route: Route, sent: Object, options: Options) -> Object:
        made, warnings = check(self._schemas, route.kind, sent, options.validation)
        options.warnings += warnings
        meta = made.setdefault("metadata", {})
        given = meta.get("namespace", route.namespace)
        if route.kind.namespaced and given != route.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if route.kind.namespaced:
            meta["namespace"] = route.namespace
        try:
            return defaulted(self._schemas, route.kind, made)
        except ValueError as error:
            path, _, detail = str(error).partition("\n")
            raise invalid(route.kind, str(meta.get("name")), [wrong(path, _at(made, path), detail)]) from None

    def _first(self, kind: Kind, made: Object) -> None:
        """What a new object is given by the server."""
        spec = made.get("spec", {})
        match kind.kind:
            case "Namespace":
                made["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = made["metadata"].get(
                    "name", ""
                )
                made |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
            case "Service" if spec.get("type") != "ExternalName":
                self._addresses += 1
                address = f"10.96.{self._addresses >> 8}.{self._addresses & 255}"
                spec.setdefault("clusterIP", address)
                spec["clusterIPs"] = [spec["clusterIP"]]
            case "Job" if "selector" not in spec:
                mark = {"batch.kubernetes.io/controller-uid": made["metadata"]["uid"]}
                spec["selector"] = {"matchLabels": mark}
                spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(mark)
            case "PersistentVolumeClaim" | "Pod":
                made["status"] = {"phase": "Pending"}
            case "CustomResourceDefinition":
                ready = [
                    {"type": each, "status": "True", "reason": "Defined"} for each in ("NamesAccepted", "Established")
                ]
                made["status"] = {"conditions": ready, "acceptedNames": spec["names"]}

    @staticmethod
    def _carried(kind: Kind, made: Object, old: Object) -> None:
        """What the server gave is kept where a write leaves it out."""
        if kind.kind == "Service":
            for key in ("clusterIP", "clusterIPs"):
                if key in old["spec"]:
                    made["spec"].setdefault(key, old["spec"][key])
        elif kind.kind == "Namespace":
            made["spec"] = old["spec"]
            made["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = made["metadata"]["name"]

    def _finish(
        self, route: Route, made: Object, old: Object | None, namespace: Object, options: Options, *, by_apply: bool
    ) -> Object:
        if old is None:
            self._admission.mutate(route, made)
        found: list[FieldProblem] = problems(made, custom=route.kind.custom)
        if old is not None and not found:
            found = list(changed(route.kind.kind, old, made))
        if found:
            raise invalid(route.kind, route.name, found)
        warnings = self._admission.review(route, made, old, namespace)
        if old is None or _desired(old) != _desired(made):
            options.warnings += warnings
        if not by_apply:
            self._owned(route, made, old, options)
        if old is not None and _plain(made) == _plain(old):
            return old
        if options.dry_run:
            return made
        stored = self._store.put(route.key, made)
        self._after(route, stored)
        return stored

    def _owned(self, route: Route, made: Object, old: Object | None, options: Options) -> None:
        sent, before = made["metadata"].get("managedFields"), (old or {}).get("metadata", {}).get("managedFields", [])
        if old is not None and sent is not None and sent != before:
            return  # a client moves ownership itself, as kubectl does before its first server-side apply
        me = managed.Owner(options.manager, "Update", route.subresource, self._now(), frozenset())
        node = self._schemas.of(route.kind)
        owners = managed.taken(node, old or {}, made, managed.read(old or {}), me)
        made["metadata"]["managedFields"] = managed.write(owners, route.kind.group_version)

    def _after(self, route: Route, stored: Object) -> None:
        """What follows a write at once here, and soon in a cluster."""
        if route.kind.kind == "CustomResourceDefinition":
            self._kinds.define(stored)
        if route.kind.kind == "Namespace":
            account = Route(self._kinds.named("ServiceAccount"), route.name, "default")
            if account.key not in self._store:
                sent = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
                self.create(account, sent, Options(manager="kube-controller-manager"))
        if route.kind.namespaced:
            self.recount(route.namespace)

    def recount(self, namespace: str) -> None:
        """Brings the status of the quotas of a namespace up to date."""
        for quota in list(self._store.all("", "resourcequotas", namespace)):
            status = self._admission.used(quota)
            if quota.get("status") != status:
                self._store.put(
                    ("", "resourcequotas", namespace, quota["metadata"]["name"]), {**quota, "status": status}
                )

    def apply(self, route: Route, sent: Object, old: Object | None, options: Options) -> Object:
        """Server-side apply. 409 names every field that somebody else owns otherwise."""
        node = self._schemas.of(route.kind)
        sent = copy.deepcopy(sent)
        sent.setdefault("metadata", {}).setdefault("name", route.name)
        if sent["metadata"].pop("managedFields", None):
            raise bad_request("metadata.managedFields must be nil")
        check(self._schemas, route.kind, sent, options.validation, partial=True)
        me = managed.Owner(options.manager, "Apply", "", self._now(), managed.fields(node, sent))
        owners = managed.read(old or {})
        if old is not None:
            merged = managed.applied(node, old, sent, owners, me)
            against = managed.conflicts(node, old, defaulted(self._schemas, route.kind, merged), owners, me)
            if against and not options.force:
                raise _taken(against)
            taken = {path for _, path in against}
            owners = [
                managed.Owner(*owner.key, owner.time, owner.paths - taken) if owner.key != me.key else owner
                for owner in owners
            ]
            sent = merged
        rest = [owner for owner in owners if owner.key != me.key and owner.paths]
        sent["metadata"]["managedFields"] = managed.write([*rest, me], route.kind.group_version)
        if old is None:
            return self.create(route, sent, options, by_apply=True)
        return self.update(route, sent, old, options, by_apply=True)


def _taken(against: list[tuple[managed.Owner, tuple[str, ...]]]) -> Problem:
    count = f"{len(against)} conflict" + ("s" if len(against) > 1 else "")
    causes = []
    for owner, path in against:
        words = "".join(step[2:].join((".", "")) if step.startswith("f:") else f"[{step[2:]}]" for step in path)
        causes.append({"reason": "FieldManagerConflict", "message": f'conflict with "{owner.manager}"', "field": words})
    message = f"Apply failed with {count}: " + ", ".join(f"{each['message']}: {each['field']}" for each in causes)
    return Problem(409, "Conflict", message, {"causes": causes})


def _desired(found: Object) -> Object:
    return {key: value for key, value in found.items() if key not in ("metadata", "status")}


def _plain(found: Object) -> Object:
    """Without what every write changes. Ownership counts, its times do not."""
    meta = {key: value for key, value in found["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    owners = {owner.key: owner.paths for owner in managed.read(found)}
    return {**found, "metadata": {**meta, "owners": owners}}


def _at(found: Any, path: str) -> Any:
    for step in path.replace("[", ".").replace("]", "").split("."):
        found = found[int(step)] if isinstance(found, list) else found.get(step)
        if not isinstance(found, dict | list):
            break
    return found
