"""Server-side apply: who owns which field, what an apply changes, and with whom it is in conflict.

Ownership is a set of paths, each a tuple of `f:field`, `k:{"name":"x"}` (an element told apart by keys) and `v:"x"` (an
element of a set), as they stand in `metadata.managedFields`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.k8s.apiserver.schemas import Node

__all__ = ["Owner", "applied", "conflicts", "fields", "read", "taken", "write"]

Path = tuple[str, ...]
Object = dict[str, Any]
_UNOWNED = {
    ("f:apiVersion",), ("f:kind",),
    *(("f:metadata", f"f:{each}") for each in ("name", "namespace", "uid", "resourceVersion", "managedFields",
                                               "creationTimestamp", "generation", "generateName")),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Owner:
    """One manager, and what it owns."""

    manager: str
    operation: str
    """`Apply` or `Update`."""
    subresource: str
    time: str
    paths: frozenset[Path]

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.manager, self.operation, self.subresource)


def fields(node: Node | None, found: Object) -> frozenset[Path]:
    """The paths of every value of an object."""
    return frozenset(path for path in _leaves(node, found, ()) if path[:2] not in _UNOWNED and path[:1] not in _UNOWNED)


def _leaves(node: Node | None, value: Any, at: Path) -> Iterator[Path]:
    keys = node.list_keys if node is not None else None
    if isinstance(value, Mapping) and value and not (node is not None and node.atomic):
        for key, each in value.items():
            yield from _leaves(node.field(key) if node is not None else None, each, (*at, f"f:{key}"))
    elif isinstance(value, list) and value and keys is not None:
        for each in value:
            step = _step(node, keys, each)
            yield (*at, step)
            if keys:
                yield from _leaves(node.items if node is not None else None, each, (*at, step))
    else:
        yield at


def _step(node: Node | None, keys: Sequence[str], element: Any) -> str:
    if not keys:
        return "v:" + json.dumps(element)
    default = node.default if node is not None else (lambda _: None)
    return "k:" + json.dumps({key: element.get(key, default(key)) for key in sorted(keys)}, separators=(",", ":"))


def _find(value: Any, node: Node | None, path: Path) -> Any:
    """What stands at a path; KeyError where nothing does."""
    for step in path:
        if step.startswith("f:"):
            value = value[step[2:]]
            node = node.field(step[2:]) if node is not None else None
        else:
            keys = node.list_keys or () if node is not None else ()
            value = next((each for each in value if _step(node, keys, each) == step), None)
            if value is None:
                raise KeyError(step)
            node = node.items if node is not None else None
    return value


def conflicts(
    node: Node | None, live: Object, wanted: Object, owners: Iterable[Owner], me: Owner
) -> list[tuple[Owner, Path]]:
    """The fields that others own and that `wanted` has otherwise."""
    found = []
    for owner in owners:
        if owner.key == me.key or owner.subresource:
            continue
        for path in sorted(owner.paths & me.paths):
            try:
                same = _find(live, node, path) == _find(wanted, node, path)
            except (KeyError, TypeError):
                continue
            if not same and not path[-1].startswith("k:"):
                found.append((owner, path))
    return found


def applied(node: Node | None, live: Object, wanted: Object, owners: Sequence[Owner], me: Owner) -> Object:
    """The object with everything of `wanted`, and without what this manager applied before, applies no more, and
    nobody else owns."""
    made: Object = _overlay(node, live, wanted)
    before = next((owner.paths for owner in owners if owner.key == me.key), frozenset())
    others = {path for owner in owners if owner.key != me.key for path in owner.paths}
    for path in sorted(before - me.paths - others, key=len, reverse=True):
        if not any(other[: len(path)] == path for other in others | me.paths):
            _remove(made, node, path)
    return made


def _overlay(node: Node | None, live: Any, wanted: Any) -> Any:
    keys = node.list_keys if node is not None else None
    atomic = node is not None and node.atomic
    if isinstance(wanted, Mapping) and isinstance(live, Mapping) and not atomic:
        made: Object = copy.deepcopy(dict(live))
        for key, value in wanted.items():
            made[key] = _overlay(node.field(key) if node is not None else None, made.get(key), value)
        return made
    if isinstance(wanted, list) and isinstance(live, list) and keys is not None:
        items = {_step(node, keys, each): each for each in live}
        for each in wanted:
            step = _step(node, keys, each)
            items[step] = _overlay(node.items if node is not None else None, items.get(step), each)
        return copy.deepcopy(list(items.values()))
    return copy.deepcopy(wanted)


def _remove(found: Object, top: Node | None, path: Path) -> None:
    node = top
    try:
        holder = _find(found, top, path[:-1])
        for step in path[:-1]:
            if node is not None:
                node = node.field(step[2:]) if step.startswith("f:") else node.items
    except (KeyError, TypeError):
        return
    step = path[-1]
    if step.startswith("f:"):
        holder.pop(step[2:], None)
    else:
        keys = node.list_keys or () if node is not None else ()
        holder[:] = [each for each in holder if _step(node, keys, each) != step]
    if not holder and len(path) > 1 and path[-2].startswith("f:"):
        _remove(found, top, path[:-1])


def taken(node: Node | None, old: Object, new: Object, owners: Sequence[Owner], me: Owner) -> list[Owner]:
    """The owners after a write that is no apply: what it changed is the writer's alone, what is gone is nobody's."""
    before, after = fields(node, old), fields(node, new)
    mine = set(after - before)
    for path in after & before:
        if _find(old, node, path) != _find(new, node, path) and not path[-1].startswith("k:"):
            mine.add(path)
    made = []
    for owner in owners:
        keep = owner.paths & after if owner.key == me.key else (owner.paths - mine) & after
        if keep and owner.key != me.key:
            made.append(Owner(*owner.key, owner.time, frozenset(keep)))
        elif owner.key == me.key:
            mine |= keep
    return [*made, Owner(*me.key, me.time, frozenset(mine))] if mine else made


def read(found: Object) -> list[Owner]:
    """`metadata.managedFields`."""
    return [
        Owner(
            each["manager"],
            each["operation"],
            each.get("subresource", ""),
            each.get("time", ""),
            frozenset(_paths(each.get("fieldsV1", {}), ())),
        )
        for each in found.get("metadata", {}).get("managedFields", ())
    ]


def _paths(tree: Mapping[str, Any], at: Path) -> Iterator[Path]:
    for step, below in tree.items():
        if step == ".":
            yield at
        elif below:
            yield from _paths(below, (*at, step))
        else:
            yield (*at, step)


def write(owners: Iterable[Owner], api_version: str) -> list[Object]:
    """As `metadata.managedFields` has it."""
    made = []
    for owner in owners:
        entry = {"manager": owner.manager, "operation": owner.operation, "apiVersion": api_version, "time": owner.time}
        if owner.subresource:
            entry["subresource"] = owner.subresource
        made.append({**entry, "fieldsType": "FieldsV1", "fieldsV1": _tree(owner.paths)})
    return made


def _tree(paths: Iterable[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        at = tree
        for step in path:
            at = at.setdefault(step, {})
    return _dotted(tree, set(paths), ())


def _dotted(tree: Object, paths: set[Path], at: Path) -> Object:
    made = {step: _dotted(below, paths, (*at, step)) for step, below in tree.items()}
    return {".": {}, **made} if made and at in paths else made
