"""Which objects a list or a watch is about: the selectors of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.k8s.apiserver.paths import Route
from tests.k8s.apiserver.problem import bad_request
from tests.k8s.apiserver.store import Event, Store

__all__ = ["Selection", "Watch"]

Object = Mapping[str, Any]
Test = Callable[[Object], bool]
_SET = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_PARTS = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a query asks for."""

    route: Route
    tests: tuple[Test, ...]

    @classmethod
    def of(cls, route: Route, query: Mapping[str, str]) -> Selection:
        tests = [_label(part) for part in _PARTS.split(query.get("labelSelector", "")) if part]
        tests += [_field(part) for part in query.get("fieldSelector", "").split(",") if part]
        if route.name:
            tests.append(_field(f"metadata.name={route.name}"))
        return cls(route, tuple(tests))

    def holds(self, found: Object) -> bool:
        return all(test(found) for test in self.tests)

    def here(self, key: tuple[str, str, str, str]) -> bool:
        kind, namespace = self.route.kind, self.route.namespace
        return key[:2] == (kind.group, kind.plural) and (not namespace or key[2] == namespace)

    def find(self, store: Store) -> list[dict[str, Any]]:
        kind = self.route.kind
        return [each for each in store.all(kind.group, kind.plural, self.route.namespace) if self.holds(each)]


class Watch:
    """One who watches: what it has not been told yet."""

    def __init__(self, store: Store, selection: Selection, query: Mapping[str, str]) -> None:
        """From the version of the query, or from what is there now."""
        self._store = store
        self._selection = selection
        self._initial: list[dict[str, Any]] = []
        wanted = query.get("resourceVersion", "")
        if query.get("sendInitialEvents") == "true" or wanted in ("", "0"):
            self._initial = [{"type": "ADDED", "object": each} for each in selection.find(store)]
            self._cursor = store.version
        else:
            self._cursor = int(wanted)
        if query.get("sendInitialEvents") == "true":
            self._initial.append(self._bookmark())

    def news(self) -> list[dict[str, Any]]:
        """Everything since the last call, as it is sent. Problem 410 when that is no longer known."""
        told, self._initial = self._initial, []
        for event in self._store.since(self._cursor):
            self._cursor = event.version
            if self._selection.here(event.key):
                told += self._told(event)
        return told

    def _told(self, event: Event) -> list[dict[str, Any]]:
        """An object that comes into a selection is added to it, and one that leaves it is deleted."""
        was = event.before is not None and self._selection.holds(event.before)
        is_now = event.kind != "DELETED" and self._selection.holds(event.object)
        if is_now:
            return [{"type": "MODIFIED" if was else "ADDED", "object": event.object}]
        return [{"type": "DELETED", "object": event.object}] if was else []

    def _bookmark(self) -> dict[str, Any]:
        kind = self._selection.route.kind
        meta = {"resourceVersion": str(self._cursor), "annotations": {"k8s.io/initial-events-end": "true"}}
        return {
            "type": "BOOKMARK",
            "object": {"kind": kind.kind, "apiVersion": kind.group_version, "metadata": meta},
        }


def _label(part: str) -> Test:
    if found := _SET.fullmatch(part):
        key, values = found[1], {each.strip() for each in found[3].split(",")}
        return lambda each: (_labels(each).get(key) in values) == (found[2] == "in")
    for sign in ("!=", "==", "="):
        if sign in part:
            key, _, value = (piece.strip() for piece in part.partition(sign))
            return lambda each: (_labels(each).get(key) == value) == (sign != "!=")
    word = part.strip()
    return lambda each: (word.lstrip("!") in _labels(each)) != word.startswith("!")


def _labels(found: Object) -> Mapping[str, str]:
    return found["metadata"].get("labels") or {}


def _field(part: str) -> Test:
    unequal = "!=" in part
    path, sign, wanted = part.partition("!=" if unequal else "=")
    if not sign:
        raise bad_request(f"invalid field selector: {part}")

    def test(found: Object) -> bool:
        value: Any = found
        for step in path.split("."):
            value = value.get(step, "") if isinstance(value, Mapping) else ""
        return (str(value) == wanted.lstrip("=")) != unequal

    return test
