"""The objects, their versions, and what has happened to them, for those who watch.

A pure table: no I/O, no clock. Objects that are handed out are copies. The history is bounded; who asks for what has
left it is told so (410).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.problem import Problem

__all__ = ["Event", "Store"]

Object = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""
_HISTORY = 10_000
_FIRST_VERSION = 100


@dataclass(frozen=True, slots=True)
class Event:
    """One change."""

    version: int
    kind: str
    """`ADDED`, `MODIFIED` or `DELETED`."""
    key: Key
    object: Object
    before: Object | None
    """What it was; None: it is new."""


class Store:
    """Everything that is kept."""

    def __init__(self) -> None:
        self.version = _FIRST_VERSION
        self._objects: dict[Key, Object] = {}
        self._history: deque[Event] = deque(maxlen=_HISTORY)

    def get(self, key: Key) -> Object | None:
        return copy.deepcopy(self._objects.get(key))

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def all(self, group: str, plural: str, namespace: str = "") -> Iterator[Object]:
        """Copies, in order of namespace and name. Empty namespace: all of them."""
        for key in sorted(self._objects):
            if key[:2] == (group, plural) and (not namespace or key[2] == namespace):
                yield copy.deepcopy(self._objects[key])

    def keys(self, wanted: Callable[[Key], bool]) -> list[Key]:
        return [key for key in sorted(self._objects) if wanted(key)]

    def put(self, key: Key, found: Object) -> Object:
        """Keeps it under a new resource version, which it is returned with."""
        before = self._objects.get(key)
        made = copy.deepcopy(found)
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = made
        self._history.append(Event(self.version, "MODIFIED" if before else "ADDED", key, made, before))
        return copy.deepcopy(made)

    def remove(self, key: Key) -> Object:
        found = copy.deepcopy(self._objects.pop(key))
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self._history.append(Event(self.version, "DELETED", key, found, found))
        return copy.deepcopy(found)

    def since(self, version: int) -> list[Event]:
        """What came after a version. 410 when that is no longer known."""
        oldest = self._history[0].version if self._history else self.version + 1
        if version < oldest - 1 and version != _FIRST_VERSION:
            raise Problem(410, "Expired", f"too old resource version: {version} ({oldest})")
        return [event for event in self._history if event.version > version]

    @staticmethod
    def kind_key(kind: Kind, namespace: str, name: str) -> Key:
        return (kind.group, kind.plural, namespace if kind.namespaced else "", name)
