"""Views of an object that are kinds of their own: its scale, a token of it, what its user may do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.problem import Problem
from tests.k8s.apiserver.rbac import Action, User, allowed
from tests.k8s.apiserver.store import Store

__all__ = ["review", "scale", "scaled", "token_review"]

Object = dict[str, Any]
_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale(kind: Kind, found: Mapping[str, Any]) -> Object:
    """autoscaling/v1 Scale of a Deployment or another kind that has one."""
    selector = found["spec"].get("selector", {}).get("matchLabels", {})
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: found["metadata"][key] for key in _META if key in found["metadata"]},
        "spec": {"replicas": found["spec"].get("replicas", 0)},
        "status": {
            "replicas": found.get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
        },
    }


def scaled(found: Object, sent: Mapping[str, Any]) -> Object:
    """The object with the replicas of a Scale."""
    replicas = sent.get("spec", {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise Problem(422, "Invalid", f"spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")
    made = copy.deepcopy(found)
    made["spec"]["replicas"] = replicas
    made["metadata"]["resourceVersion"] = sent["metadata"].get("resourceVersion", found["metadata"]["resourceVersion"])
    return made


def token_review(sent: Object, token: str, until: str) -> Object:
    """The answer to a TokenRequest."""
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {},
        "spec": sent.get("spec", {}),
        "status": {"token": token, "expirationTimestamp": until},
    }


def review(store: Store, user: User, sent: Object) -> Object:
    """The answer to a SelfSubjectAccessReview."""
    asked = sent.get("spec", {}).get("resourceAttributes") or {}
    sub = asked.get("subresource")
    resource = asked.get("resource", "") + (f"/{sub}" if sub else "")
    action = Action(
        asked.get("verb", ""), asked.get("group", ""), resource, asked.get("namespace", ""), asked.get("name", "")
    )
    return {**sent, "metadata": {}, "status": {"allowed": allowed(store, user, action)}}
