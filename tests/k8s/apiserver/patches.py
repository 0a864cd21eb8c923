"""JSON merge patch (RFC 7386) and strategic merge patch, which merges lists of objects by a key of theirs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.k8s.apiserver.problem import bad_request
from tests.k8s.apiserver.schemas import Node

__all__ = ["merge", "strategic"]

_ORDER, _DELETE_FROM, _RETAIN, _PATCH = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys", "$patch"


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects are merged, everything else is replaced."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    made = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merge(made.get(key), value)
    return made


def strategic(node: Node | None, target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """What kubectl sends for built-in kinds. Besides the merge: `$patch: replace|delete`, `$retainKeys`,
    `$setElementOrder/FIELD` and `$deleteFromPrimitiveList/FIELD`."""
    directive = patch.get(_PATCH)
    if directive == "replace":
        return {key: _plain(value) for key, value in patch.items() if not key.startswith("$") and value is not None}
    if directive == "delete":
        return {}
    made: dict[str, Any] = copy.deepcopy(dict(target)) if isinstance(target, Mapping) else {}
    if _RETAIN in patch:
        made = {key: value for key, value in made.items() if key in patch[_RETAIN]}
    orders = {key.removeprefix(_ORDER): value for key, value in patch.items() if key.startswith(_ORDER)}
    for key, gone in patch.items():
        if key.startswith(_DELETE_FROM):
            field = key.removeprefix(_DELETE_FROM)
            made[field] = [each for each in made.get(field, ()) if each not in gone]
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        child = node.field(key) if node is not None else None
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping):
            made[key] = strategic(child, made.get(key), value)
        elif isinstance(value, list):
            made[key] = _list(child, made.get(key) or [], value)
        else:
            made[key] = value
    for field, order in orders.items():
        child = node.field(field) if node is not None else None
        if field in made:
            made[field] = _ordered(child, made[field], order)
    return made


def _list(node: Node | None, target: list[Any], patch: list[Any]) -> list[Any]:
    if node is None or "merge" not in node.strategies:
        return [_plain(each) for each in patch]
    key = node.merge_key
    if key is None:
        return target + [each for each in patch if each not in target]
    if any(isinstance(each, Mapping) and each.get(_PATCH) == "replace" for each in patch):
        return [_plain(each) for each in patch if _PATCH not in each]
    made = copy.deepcopy(target)
    for each in patch:
        if key not in each:
            raise bad_request(f"map: {each} does not contain declared merge key: {key}")
        index = next((number for number, old in enumerate(made) if old.get(key) == each[key]), None)
        if each.get(_PATCH) == "delete":
            if index is not None:
                del made[index]
        elif index is None:
            made.append(strategic(node.items, {}, each))
        else:
            made[index] = strategic(node.items, made[index], each)
    return made


def _ordered(node: Node | None, found: list[Any], order: list[Any]) -> list[Any]:
    """Elements named in `order` in that order; the others stay behind what was before them."""
    key = node.merge_key if node is not None else None
    wanted = [each[key] if key and isinstance(each, Mapping) else each for each in order]

    def place(each: Any) -> int:
        value = each.get(key) if key and isinstance(each, Mapping) else each
        return wanted.index(value) if value in wanted else len(wanted)

    return sorted(found, key=place)


def _plain(value: Any) -> Any:
    """Without directives and nulls."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None and not key.startswith("$")}
    return [_plain(each) for each in value] if isinstance(value, list) else value
