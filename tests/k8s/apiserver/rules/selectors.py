"""Label selectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.names import labels
from tests.k8s.apiserver.problem import FieldProblem, required, wrong

__all__ = ["matches", "selector"]

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def selector(path: str, found: Mapping[str, Any]) -> Iterator[FieldProblem]:
    yield from labels(f"{path}.matchLabels", found.get("matchLabels", {}))
    for index, each in enumerate(found.get("matchExpressions", ())):
        where = f"{path}.matchExpressions[{index}]"
        if each["operator"] not in _OPERATORS:
            yield wrong(f"{where}.operator", each["operator"], "not a valid selector operator")
        elif each["operator"].endswith("In") and not each.get("values"):
            yield required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")


def matches(found: Mapping[str, Any] | None, of: Mapping[str, str]) -> bool:
    """Whether a selector selects something with these labels. None selects nothing, an empty one everything."""
    if found is None:
        return False
    if not dict(found.get("matchLabels", {})).items() <= dict(of).items():
        return False
    return all(_expression(each, of) for each in found.get("matchExpressions", ()))


def _expression(each: Mapping[str, Any], of: Mapping[str, str]) -> bool:
    key, values = each["key"], each.get("values", ())
    match each["operator"]:
        case "In":
            return of.get(key) in values
        case "NotIn":
            return of.get(key) not in values
        case "Exists":
            return key in of
        case _:
            return key not in of
