"""The tests' API server itself: what it lets in, who may do what, and what two writers see of each other."""

from __future__ import annotations

import datetime
import itertools
import json
from typing import Any

import pytest

from tests.k8s.apiserver import Api, Request, Response
from tests.k8s.apiserver.podsecurity import LEVELS, violations
from tests.k8s.apiserver.quantity import canonical

Object = dict[str, Any]


class Client:
    """Speaks to the core as one user; time stands until it is moved."""

    def __init__(self, version: str = "1.36") -> None:
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        words = (f"word-{number}" for number in itertools.count())
        self.api = Api(version, now=lambda: self.now, word=lambda: next(words))
        self.token = self.api.accounts.admin()

    def call(
        self, method: str, path: str, body: Any = None, *, media: str = "application/json", **query: str
    ) -> Response:
        raw = b"" if body is None else json.dumps(body).encode()
        return self.api.handle(Request(method, path, query, raw, media, token=self.token, agent="test/1"))

    def ok(self, method: str, path: str, body: Any = None, **more: str) -> Object:
        response = self.call(method, path, body, **more)
        assert response.code < 300, response.body
        return response.body


CORE, LEASES = "/api/v1/namespaces", "/apis/coordination.k8s.io/v1/namespaces/default/leases"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


def lease(**meta: str) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "limiter", **meta},
        "spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.000000Z"},
    }


def pod(**spec: Any) -> Object:
    container = {"name": "main", "image": "x:1", **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "p-"},
        "spec": {"containers": [container], **spec},
    }


def test_of_two_writers_one_loses() -> None:
    client = Client()
    first = client.ok("POST", LEASES, lease())
    changed = {**first, "spec": {**first["spec"], "holderIdentity": "b"}}
    second = client.ok("PUT", f"{LEASES}/limiter", changed)
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    lost = client.call("PUT", f"{LEASES}/limiter", changed)
    assert (lost.code, lost.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in lost.body["message"]
    again = client.call("POST", LEASES, lease())
    assert (again.code, again.body["reason"]) == (409, "AlreadyExists")


def test_a_write_of_the_same_is_no_write() -> None:
    client = Client()
    first = client.ok("POST", LEASES, lease())
    assert client.ok("PUT", f"{LEASES}/limiter", first) == first


def test_a_lease_needs_times_with_microseconds() -> None:
    found = lease()
    found["spec"]["renewTime"] = "2026-01-01T00:00:00Z"
    refused = Client().call("POST", LEASES, found)
    assert refused.code == 422
    assert refused.body["details"]["causes"][0]["field"] == "spec.renewTime"


def test_a_service_account_may_do_what_a_role_grants_and_nothing_else() -> None:
    client = Client()
    client.ok("POST", f"{CORE}/default/serviceaccounts", _named("v1", "ServiceAccount", "limiter"))
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["limiter"],
            "verbs": ["get", "update"],
        },
    ]
    group = "rbac.authorization.k8s.io"
    client.ok("POST", f"{RBAC}/roles", {**_named(f"{group}/v1", "Role", "limiter"), "rules": rules})
    admin, client.token = client.token, client.api.accounts.issue("default", "limiter", 600)
    refused = client.call("GET", f"{LEASES}/limiter")
    assert refused.code == 403
    assert refused.body["message"] == (
        'leases.coordination.k8s.io "limiter" is forbidden: User "system:serviceaccount:default:limiter" cannot get '
        'resource "leases" in API group "coordination.k8s.io" in the namespace "default"'
    )
    binding = {
        **_named(f"{group}/v1", "RoleBinding", "limiter"),
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "limiter"},
        "subjects": [{"kind": "ServiceAccount", "name": "limiter", "namespace": "default"}],
    }
    mine, client.token = client.token, admin
    client.ok("POST", f"{RBAC}/rolebindings", binding)
    client.token = mine
    assert client.call("GET", f"{LEASES}/limiter").code == 404
    made = client.ok("POST", LEASES, lease())
    client.ok("PUT", f"{LEASES}/limiter", {**made, "spec": {}})
    other = LEASES.replace("default", "kube-system")
    for method, path in (
        ("GET", LEASES), ("GET", f"{LEASES}/other"), ("DELETE", f"{LEASES}/limiter"), ("PATCH", f"{LEASES}/limiter"),
        ("GET", f"{other}/limiter"), ("POST", other), ("GET", f"{CORE}/default/pods"),
        ("GET", f"{CORE}/default/secrets/x"),
    ):  # fmt: skip
        assert client.call(method, path, lease()).code == 403, (method, path)
    client.now += datetime.timedelta(seconds=601)
    assert client.call("GET", f"{LEASES}/limiter").code == 401


def _named(api_version: str, kind: str, name: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


def test_both_ways_of_discovery_tell_the_same() -> None:
    client = Client()
    modern = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
    told = set()
    for path in ("/api", "/apis"):
        response = client.api.handle(Request("GET", path, accept=modern, token=client.token))
        assert response.content_type.endswith("as=APIGroupDiscoveryList")
        for group in response.body["items"]:
            for version in group["versions"]:
                home = "/".join(word for word in (group["metadata"].get("name"), version["version"]) if word)
                told |= {(home, each["resource"]) for each in version["resources"]}
    groups = [version["groupVersion"] for group in client.ok("GET", "/apis")["groups"] for version in group["versions"]]
    listed = set()
    for home in ("v1", *groups):
        resources = client.ok("GET", f"/api/{home}" if home == "v1" else f"/apis/{home}")["resources"]
        listed |= {(home, each["name"]) for each in resources if "/" not in each["name"]}
    assert told == listed
    assert set(client.ok("GET", "/openapi/v3")["paths"]) >= {"api/v1", "apis/apps/v1"}


def test_without_a_token_nobody_is_served() -> None:
    client = Client()
    client.token = ""
    assert client.call("GET", "/api").code == 401


NNP = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
UNCONFINED, DEFAULT = {"type": "Unconfined"}, {"type": "RuntimeDefault"}
LOCAL = {"type": "Localhost", "localhostProfile": "nested.json"}
USER = {"runAsNonRoot": True, "runAsUser": 10001}
MEASURED = [
    (pod(securityContext={**USER, "seccompProfile": DEFAULT}, container={"securityContext": NNP}), 2),
    (pod(hostUsers=False, securityContext={**USER, "seccompProfile": DEFAULT}, container={"securityContext": NNP}), 2),
    (pod(securityContext={**USER, "seccompProfile": LOCAL}, container={"securityContext": NNP}), 2),
    (pod(securityContext=USER, container={"securityContext": NNP}), 1),
    (pod(securityContext={**USER, "seccompProfile": UNCONFINED}, container={"securityContext": NNP}), 0),
    (
        pod(
            hostUsers=False,
            securityContext={**USER, "seccompProfile": LOCAL},
            container={"securityContext": {**NNP, "procMount": "Unmasked"}},
        ),
        1,
    ),
    (
        pod(
            hostUsers=False,
            securityContext={**USER, "seccompProfile": UNCONFINED},
            container={"securityContext": {**NNP, "procMount": "Unmasked"}},
        ),
        0,
    ),
    (
        pod(
            securityContext={**USER, "seccompProfile": DEFAULT, "appArmorProfile": UNCONFINED},
            container={"securityContext": NNP},
        ),
        0,
    ),
    (
        pod(
            hostUsers=False,
            securityContext={"seccompProfile": DEFAULT},
            container={"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["SETUID", "SETGID", "CHOWN"]}}},
        ),
        1,
    ),
    (pod(container={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}), 0),
]
"""Pods, and the strictest level that let them in on a cluster of 1.36: 2 is restricted, 1 baseline, 0 privileged."""


@pytest.mark.parametrize(("found", "strictest"), MEASURED)
def test_pod_security_is_as_measured_on_a_real_cluster(found: Object, strictest: int) -> None:
    admitted = [not violations(level, found["spec"], "1.36") for level in LEVELS]
    assert admitted == [index <= strictest for index in range(3)]


def test_pods_are_refused_and_what_makes_them_is_warned() -> None:
    client = Client()
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    client.ok("POST", CORE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": labels}})
    refused = client.call("POST", f"{CORE}/a/pods", pod())
    assert refused.code == 403
    assert 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false' in refused.body["message"]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}
    body = {
        **_named("apps/v1", "Deployment", "d"),
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    made = client.call("POST", "/apis/apps/v1/namespaces/a/deployments", body)
    assert made.code == 201
    assert made.warnings[0].startswith('would violate PodSecurity "restricted:latest"')


def test_a_quota_counts_and_refuses() -> None:
    client = Client()
    hard = {"pods": "2", "requests.memory": "1Gi"}
    client.ok("POST", f"{CORE}/default/resourcequotas", {**_named("v1", "ResourceQuota", "q"), "spec": {"hard": hard}})
    refused = client.call("POST", f"{CORE}/default/pods", pod())
    assert "failed quota: q: must specify requests.memory" in refused.body["message"]
    sized = {"resources": {"requests": {"memory": "400Mi"}}}
    for _ in range(2):
        client.ok("POST", f"{CORE}/default/pods", pod(container=sized))
    found = client.ok("GET", f"{CORE}/default/resourcequotas/q")
    assert found["status"]["used"] == {"pods": "2", "requests.memory": "800Mi"}
    refused = client.call("POST", f"{CORE}/default/pods", pod(container=sized))
    assert refused.code == 403
    assert refused.body["message"].endswith(
        "exceeded quota: q, requested: pods=1,requests.memory=400Mi, used: pods=2,requests.memory=800Mi, "
        "limited: pods=2,requests.memory=1Gi"
    )


def test_a_limit_range_fills_in_and_bounds() -> None:
    client = Client()
    limit = {
        "type": "Container",
        "default": {"memory": "1Gi"},
        "defaultRequest": {"memory": "256Mi"},
        "max": {"memory": "2Gi"},
    }
    client.ok("POST", f"{CORE}/default/limitranges", {**_named("v1", "LimitRange", "l"), "spec": {"limits": [limit]}})
    made = client.ok("POST", f"{CORE}/default/pods", pod())
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"memory": "256Mi"}}
    large = {"resources": {"limits": {"memory": "3Gi"}}}
    refused = client.call("POST", f"{CORE}/default/pods", pod(container=large))
    assert "maximum memory usage per Container is 2Gi, but limit is 3Gi" in refused.body["message"]


def test_a_pod_gets_the_token_of_its_account_unless_it_does_not_want_it() -> None:
    client = Client()
    made = client.ok("POST", f"{CORE}/default/pods", pod())
    assert made["spec"]["serviceAccountName"] == "default"
    assert made["spec"]["containers"][0]["volumeMounts"][0]["mountPath"].endswith("/serviceaccount")
    made = client.ok("POST", f"{CORE}/default/pods", pod(automountServiceAccountToken=False))
    assert "volumes" not in made["spec"]
    refused = client.call("POST", f"{CORE}/default/pods", pod(serviceAccountName="nobody"))
    assert 'serviceaccount "nobody" not found' in refused.body["message"]
    refused = client.call("POST", f"{CORE}/default/pods", pod(runtimeClassName="gvisor"))
    assert 'RuntimeClass "gvisor" not found' in refused.body["message"]


@pytest.mark.parametrize(
    ("written", "stored"),
    [("1000m", "1"), ("0.5", "500m"), ("1024Mi", "1Gi"), ("0.5Gi", "512Mi"), ("1e3", "1e3"), ("1000", "1k"),
     ("100M", "100M"), ("4294967296", "4294967296"), ("0", "0"), (2, "2")],
)  # fmt: skip
def test_quantities_have_one_form(written: str, stored: str) -> None:
    assert canonical(written) == stored


def _config(**data: str) -> Object:
    return {**_named("v1", "ConfigMap", "c"), "data": data}


APPLY = "application/apply-patch+yaml"


def test_server_side_apply_names_who_owns_what() -> None:
    client, path = Client(), f"{CORE}/default/configmaps/c"
    client.ok("PATCH", path, _config(a="1", b="1"), media=APPLY, fieldManager="one")
    refused = client.call("PATCH", path, _config(a="2"), media=APPLY, fieldManager="two")
    assert refused.code == 409
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    made = client.ok("PATCH", path, _config(a="2"), media=APPLY, fieldManager="two", force="true")
    assert made["data"] == {"a": "2", "b": "1"}
    # What a manager applies no more goes, unless somebody else owns it too.
    made = client.ok("PATCH", path, _config(), media=APPLY, fieldManager="one")
    assert made["data"] == {"a": "2"}


def test_a_merge_keeps_what_others_added() -> None:
    client = Client()
    made = client.ok("POST", f"{CORE}/default/pods", pod())
    path = f"{CORE}/default/pods/{made['metadata']['name']}"
    patch = {"spec": {"containers": [{"name": "main", "image": "x:2"}]}, "metadata": {"labels": {"a": "b"}}}
    changed = client.ok("PATCH", path, patch, media="application/strategic-merge-patch+json")
    assert changed["spec"]["containers"][0]["image"] == "x:2"
    assert changed["spec"]["containers"][0]["volumeMounts"] == made["spec"]["containers"][0]["volumeMounts"]
    patch = {"metadata": {"labels": None}}
    assert "labels" not in client.ok("PATCH", path, patch, media="application/merge-patch+json")["metadata"]
    steps = [{"op": "test", "path": "/kind", "value": "Service"}]
    assert client.call("PATCH", path, steps, media="application/json-patch+json").code == 422
    assert client.call("PATCH", path, {}, media="text/plain").code == 415


def test_who_watches_is_told_of_what_comes_into_its_selection_and_leaves_it() -> None:
    client = Client()
    client.ok("POST", LEASES, lease())
    response = client.call("GET", LEASES, watch="1", labelSelector="a=b")
    assert response.watch is not None
    assert response.watch.news() == []
    for labels, kind in (({"a": "b"}, "ADDED"), ({"a": "b", "c": "d"}, "MODIFIED"), ({"a": "c"}, "DELETED")):
        patch = {"metadata": {"labels": labels}}
        client.ok("PATCH", f"{LEASES}/limiter", patch, media="application/merge-patch+json")
        assert [event["type"] for event in response.watch.news()] == [kind]
    assert response.watch.news() == []


def test_a_namespace_takes_everything_in_it_along() -> None:
    client = Client()
    client.ok("POST", CORE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}})
    client.ok("POST", f"{CORE}/a/configmaps", _config(x="y"))
    client.ok("DELETE", f"{CORE}/a")
    assert client.ok("GET", f"{CORE}/a")["status"]["phase"] == "Terminating"
    refused = client.call("POST", f"{CORE}/a/pods", pod())
    assert "because it is being terminated" in refused.body["message"]
    assert client.api.sweep()
    assert client.call("GET", f"{CORE}/a/configmaps/c").code == 404
    assert client.call("GET", f"{CORE}/a").code == 404


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "boxes.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": "Box", "plural": "boxes"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"size": {"type": "integer", "minimum": 1}}}
                        },
                    }
                },
            }
        ],
    },
}


def test_a_crd_adds_a_kind_with_its_schema() -> None:
    client, path = Client(), "/apis/example.com/v1/namespaces/default/boxes"
    assert client.call("GET", path).code == 404
    client.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
    box = {**_named("example.com/v1", "Box", "b"), "spec": {"size": 1}}
    client.ok("POST", path, box, fieldValidation="Strict")
    box["metadata"] = {"name": "c"}
    wrong = client.call("POST", path, {**box, "spec": {"size": "1"}})
    assert wrong.code == 422
    unknown = client.call("POST", path, {**box, "spec": {"sise": 1}}, fieldValidation="Strict")
    assert 'unknown field "spec.sise"' in unknown.body["message"]
    client.ok("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/boxes.example.com")
    assert client.call("GET", path).code == 404
