"""The API server's core: a request goes in, a response comes out. No I/O, no tasks; time and chance come from outside.

What it keeps to: discovery, strict decoding against the schemas of one Kubernetes version, defaults, validation,
immutable fields, optimistic concurrency, three kinds of patches and server-side apply, dry runs, tokens and RBAC,
namespaces, service accounts, Pod Security, quotas and limit ranges, CRDs, list and watch.

What it does not do: there are no controllers, so a Deployment makes no pods and its status is what somebody writes;
deletion is immediate (no finalizers, no garbage collection of dependents), but that of a namespace, which `sweep()`
ends; lists come whole; no protobuf, which `kubectl create job` and its like send; no conversion between versions of a
kind; no webhooks; no check that who grants a right has it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonpatch

from tests.k8s.apiserver import discovery
from tests.k8s.apiserver.accounts import Accounts, service_account
from tests.k8s.apiserver.decode import parse
from tests.k8s.apiserver.kinds import Kinds
from tests.k8s.apiserver.listing import Selection, Watch
from tests.k8s.apiserver.patches import merge, strategic
from tests.k8s.apiserver.paths import Route, resource_route
from tests.k8s.apiserver.problem import Problem, bad_request, conflict, forbidden, not_found
from tests.k8s.apiserver.rbac import ADMINS, Action, User, allowed
from tests.k8s.apiserver.schemas import Schemas
from tests.k8s.apiserver.store import Store
from tests.k8s.apiserver.subresources import review, scale, scaled, token_review
from tests.k8s.apiserver.writing import Options, Writer

__all__ = ["Api", "Request", "Response"]

Object = dict[str, Any]
_METHODS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_STRATEGIC, _JSON = "application/strategic-merge-patch+json", "application/json-patch+json"
_READ = ("application/json", "application/yaml", _APPLY, _MERGE, _STRATEGIC, _JSON)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"
    accept: str = ""
    token: str = ""
    agent: str = "unknown"
    as_user: str = ""
    """Impersonation: whom the administrator speaks as."""


@dataclass(frozen=True, slots=True)
class Response:
    """Its answer. `watch`: what follows as a stream."""

    code: int
    body: Object
    warnings: tuple[str, ...] = ()
    content_type: str = "application/json"
    watch: Watch | None = None


class Api:
    """One API server."""

    def __init__(self, version: str, *, now: Callable[[], datetime.datetime], word: Callable[[], str]) -> None:
        """`version`: of Kubernetes, as `1.36`. `now`: the time, in UTC. `word`: a new unguessable one each time."""
        self.store = Store()
        self.accounts = Accounts(lambda: now().timestamp(), word)
        self._kinds = Kinds()
        self._schemas = Schemas(version)
        self._now = now
        self._writer = Writer(self.store, self._kinds, self._schemas, now=lambda: _timestamp(now()), new_uid=word)
        for name in _NAMESPACES:
            route = Route(self._kinds.named("Namespace"), "", name)
            sent = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self._writer.create(route, sent, Options(manager="kube-apiserver"))

    def handle(self, request: Request) -> Response:
        """Never raises for what a client sends."""
        try:
            return self._handle(request)
        except Problem as problem:
            return Response(problem.code, problem.status)

    def _handle(self, request: Request) -> Response:
        user = self._user(request)
        if request.method == "GET":
            if "apidiscovery.k8s.io;v=v2" in request.accept and "v2beta1" not in request.accept.partition(",")[0]:
                found = discovery.aggregated(self._kinds, request.path)
                if found is not None:
                    kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                    return Response(200, found, content_type=kind)
            found = discovery.document(self._kinds, self._schemas.version, request.path)
            if found is not None:
                return Response(200, found)
        route = resource_route(self._kinds, request.path)
        if route is None:
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        self._authorize(user, request, route)
        if request.method == "GET":
            return self._read(route, request.query)
        if request.method == "DELETE":
            return self._delete(route, request)
        return self._write(user, route, request)

    def _user(self, request: Request) -> User:
        user = self.accounts.user(request.token)
        if not request.as_user:
            return user
        if ADMINS not in user.groups:
            raise Problem(
                403, "Forbidden", f'users "{request.as_user}" is forbidden: User "{user.name}" cannot impersonate'
            )
        account = request.as_user.split(":")
        return service_account(*account[2:]) if account[:2] == ["system", "serviceaccount"] else User(request.as_user)

    def _authorize(self, user: User, request: Request, route: Route) -> None:
        verb = _METHODS.get(request.method, "get" if route.name else "list")
        if verb == "delete" and not route.name:
            verb = "deletecollection"
        if request.method == "GET" and request.query.get("watch") in ("1", "true"):
            verb = "watch"
        if route.kind.kind == "SelfSubjectAccessReview":
            return
        kind = route.kind
        resource = f"{kind.plural}/{route.subresource}" if route.subresource else kind.plural
        action = Action(verb, kind.group, resource, route.namespace, route.name)
        if not allowed(self.store, user, action):
            where = f' in the namespace "{route.namespace}"' if route.namespace else " at the cluster scope"
            why = f'User "{user.name}" cannot {verb} resource "{resource}" in API group "{kind.group}"{where}'
            raise forbidden(kind, route.name, why)

    def _read(self, route: Route, query: Mapping[str, str]) -> Response:
        if query.get("watch") in ("1", "true"):
            return Response(200, {}, watch=Watch(self.store, Selection.of(route, query), query))
        kind = route.kind
        if route.name:
            found = self._existing(route)
            return Response(200, scale(kind, found) if route.subresource == "scale" else found)
        body = {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.group_version,
            "metadata": {"resourceVersion": str(self.store.version)},
            "items": Selection.of(route, query).find(self.store),
        }
        return Response(200, body)

    def _existing(self, route: Route) -> Object:
        found = self.store.get(route.key)
        if found is None:
            raise not_found(route.kind, route.name)
        return found

    def _write(self, user: User, route: Route, request: Request) -> Response:
        if request.method not in _METHODS:
            raise Problem(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        options = _options(request)
        media = request.content_type.partition(";")[0].strip()
        if media not in _READ:
            raise Problem(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {media}")
        sent = parse(request.body, yaml_allowed=media in (_APPLY, "application/yaml"))
        if not isinstance(sent, dict) and media != _JSON:
            raise bad_request(f"the body is {type(sent).__name__}, must be an object")
        if route.kind.kind == "SelfSubjectAccessReview":
            return Response(201, review(self.store, user, sent))
        if request.method == "POST":
            if route.subresource == "token":
                return self._token(route, sent)
            if route.name:
                raise Problem(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )
            made = self._writer.create(route, sent, options)
            return Response(201, made, tuple(options.warnings))
        old = self.store.get(route.key)
        if request.method == "PATCH" and media == _APPLY:
            made = self._writer.apply(route, sent, old, options)
            return Response(200 if old else 201, made, tuple(options.warnings))
        old = self._existing(route)
        shown = scale(route.kind, old) if route.subresource == "scale" else old
        new = self._patched(route, shown, sent, media) if request.method == "PATCH" else sent
        if route.subresource == "scale":
            made = self._writer.update(Route(route.kind, route.namespace, route.name), scaled(old, new), old, options)
            return Response(200, scale(route.kind, made), tuple(options.warnings))
        made = self._writer.update(route, new, old, options)
        return Response(200, made, tuple(options.warnings))

    def _patched(self, route: Route, old: Object, patch: Any, media: str) -> Object:
        if media == _JSON:
            try:
                made = jsonpatch.apply_patch(old, patch)
            except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                raise Problem(
                    422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
                ) from None
        elif media == _MERGE:
            made = merge(old, patch)
        elif media == _STRATEGIC and not route.kind.custom:
            made = strategic(self._schemas.of(route.kind), old, patch)
        else:
            raise Problem(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {media}")
        return dict(made)

    def _delete(self, route: Route, request: Request) -> Response:
        body = parse(request.body) if request.body else {}
        dry_run = "All" in (request.query.get("dryRun"), *body.get("dryRun", ()))
        if not route.name:
            for found in Selection.of(route, request.query).find(self.store):
                meta = found["metadata"]
                self._remove(Route(route.kind, meta.get("namespace", ""), meta["name"]), dry_run=dry_run)
            return Response(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
        found = self._existing(route)
        wanted = body.get("preconditions", {})
        for key in ("uid", "resourceVersion"):
            if wanted.get(key, found["metadata"][key]) != found["metadata"][key]:
                raise conflict(route.kind, route.name, f"Precondition failed: {key} in precondition: {wanted[key]}")
        self._remove(route, dry_run=dry_run)
        details = {
            "name": route.name, "group": route.kind.group, "kind": route.kind.plural, "uid": found["metadata"]["uid"],
        }  # fmt: skip
        return Response(
            200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        )

    def _remove(self, route: Route, *, dry_run: bool) -> None:
        if dry_run:
            return
        kind = route.kind.kind
        if kind == "Namespace":
            self._terminate(route)
            return
        found = self.store.remove(route.key)
        if kind == "ServiceAccount":
            self.accounts.revoke(route.namespace, route.name)
        if kind == "CustomResourceDefinition":
            spec = found["spec"]
            for key in self.store.keys(lambda key: key[:2] == (spec["group"], spec["names"]["plural"])):
                self.store.remove(key)
            self._kinds.forget(found)
        if route.kind.namespaced:
            self._writer.recount(route.namespace)

    def _terminate(self, route: Route) -> None:
        found = self._existing(route)
        if not found["metadata"].get("deletionTimestamp"):
            found["metadata"]["deletionTimestamp"] = _timestamp(self._now())
            self.store.put(route.key, {**found, "status": {"phase": "Terminating"}})

    def sweep(self) -> bool:
        """Ends the namespaces that are going away, and everything in them; whether there was one."""
        going = [each for each in self.store.all("", "namespaces") if each["metadata"].get("deletionTimestamp")]
        for namespace in going:
            name = namespace["metadata"]["name"]
            for key in self.store.keys(lambda key, name=name: key[2] == name):  # type: ignore[misc]
                self.store.remove(key)
            self.store.remove(("", "namespaces", "", name))
        return bool(going)

    def _token(self, route: Route, sent: Object) -> Response:
        self._existing(route)
        seconds = float(sent.get("spec", {}).get("expirationSeconds") or 3600)
        if seconds < 600:
            raise Problem(
                422, "Invalid", "spec.expirationSeconds: Invalid value: may not specify a duration less than 10 minutes"
            )
        token = self.accounts.issue(route.namespace, route.name, seconds)
        until = _timestamp(self._now() + datetime.timedelta(seconds=seconds))
        return Response(201, token_review(sent, token, until))


def _options(request: Request) -> Options:
    query = request.query
    if query.get("dryRun", "All") != "All":
        raise Problem(422, "Invalid", f'dryRun: Unsupported value: "{query["dryRun"]}": supported values: "All"')
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        raise Problem(422, "Invalid", f'fieldValidation: Unsupported value: "{validation}"')
    manager = query.get("fieldManager") or request.agent.partition("/")[0]
    return Options("dryRun" in query, validation, manager, query.get("force") == "true")


def _timestamp(now: datetime.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
