"""Who may do what: Roles and ClusterRoles as bound to users, groups and service accounts. A pure question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.k8s.apiserver.store import Store

__all__ = ["ADMINS", "Action", "User", "allowed"]

ADMINS = "system:masters"
"""Who is in this group may do everything."""
_GROUP = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class User:
    """Who asks."""

    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """What is asked for."""

    verb: str
    group: str
    resource: str
    """Plural; with a subresource `deployments/scale`."""
    namespace: str = ""
    name: str = ""


def allowed(store: Store, user: User, action: Action) -> bool:
    """Whether some binding grants it."""
    return ADMINS in user.groups or any(_covers(rule, action) for rule in _rules(store, user, action.namespace))


def _rules(store: Store, user: User, namespace: str) -> Iterator[Mapping[str, Any]]:
    bindings = list(store.all(_GROUP, "clusterrolebindings"))
    if namespace:
        bindings += store.all(_GROUP, "rolebindings", namespace)
    for binding in bindings:
        if any(_is(subject, user, binding["metadata"].get("namespace", "")) for subject in binding.get("subjects", ())):
            reference = binding["roleRef"]
            of_cluster = reference["kind"] == "ClusterRole"
            plural = "clusterroles" if of_cluster else "roles"
            home = "" if of_cluster else binding["metadata"]["namespace"]
            role = store.get((_GROUP, plural, home, reference["name"]))
            yield from (role or {}).get("rules", ()) or ()


def _is(subject: Mapping[str, Any], user: User, home: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace', home)}:{subject['name']}"
    return subject["name"] in (user.groups if subject["kind"] == "Group" else (user.name,))


def _covers(rule: Mapping[str, Any], action: Action) -> bool:
    names = rule.get("resourceNames", ())
    return (
        _among(rule.get("verbs", ()), action.verb)
        and _among(rule.get("apiGroups", ()), action.group)
        and _among(rule.get("resources", ()), action.resource)
        and (not names or action.name in names)
    )


def _among(values: Iterable[str], wanted: str) -> bool:
    return "*" in values or wanted in values
