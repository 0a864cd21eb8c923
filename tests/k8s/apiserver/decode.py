"""From the body of a request to an object: field by field against the schema, unknown fields and wrong types found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from jsonschema.exceptions import ValidationError

from tests.k8s.apiserver.kinds import Kind
from tests.k8s.apiserver.problem import FieldProblem, bad_request, invalid, required, wrong
from tests.k8s.apiserver.schemas import Node, Schemas

__all__ = ["check", "dotted", "parse", "pruned"]

Object = dict[str, Any]
_GO = {"integer": "int32", "boolean": "bool", "array": "slice", "object": "struct"}
_JSON = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}


def parse(body: bytes, *, yaml_allowed: bool = False) -> Any:
    """JSON, or YAML where that may come. A field given twice is refused, as strict validation does."""
    try:
        if yaml_allowed:
            return yaml.safe_load(body)
        return json.loads(body, object_pairs_hook=_once)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> Object:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'strict decoding error: duplicate field "{twice}"')
    return made


def pruned(value: Any) -> Any:
    """A copy without fields that are null: an API server takes null for not given."""
    if isinstance(value, Mapping):
        return {key: pruned(each) for key, each in value.items() if each is not None}
    return [pruned(each) for each in value] if isinstance(value, list) else value


def dotted(path: Iterable[str | int]) -> str:
    """`spec.containers[0].name`."""
    made = ""
    for step in path:
        made += f"[{step}]" if isinstance(step, int) else f".{step}"
    return made.removeprefix(".")


def check(
    schemas: Schemas, kind: Kind, found: Object, validation: str, *, partial: bool = False
) -> tuple[Object, list[str]]:
    """The object without unknown fields, and a warning for each that was dropped.

    `validation` is `Strict` (unknown fields are refused, 400), `Warn` or `Ignore`. A wrong type is refused always: 400,
    or 422 where a CRD describes the kind. A field that lacks is 422, but in a `partial` object.
    """
    for field, given, expected in (
        ("API version", found.get("apiVersion"), kind.group_version),
        ("kind", found.get("kind"), kind.kind),
    ):
        if given != expected:
            raise bad_request(f"the {field} in the data ({given}) does not match the expected {field} ({expected})")
    found = pruned(found)
    validator = schemas.validator(kind)
    if validator is None:
        raise bad_request(f"Kubernetes {schemas.version} has no {kind.kind} in {kind.group_version}")
    unknown: list[tuple[str | int, ...]] = []
    problems: list[FieldProblem] = []
    for error in validator.iter_errors(found):
        if not partial or error.validator != "required":
            _sort(kind, error, unknown, problems)
    if kind.custom:
        pod = schemas.of(Kind("", "v1", "Pod", "pods"))
        assert pod is not None
        unknown += _unknown_metadata(pod, found.get("metadata", {}))
    words = [f'unknown field "{dotted(path)}"' for path in unknown]
    if words and validation == "Strict":
        raise bad_request(f"strict decoding error: {', '.join(words)}")
    if problems:
        raise invalid(kind, str(found.get("metadata", {}).get("name", "")), problems)
    for path in unknown:
        holder = found
        for step in path[:-1]:
            holder = holder[step]  # type: ignore[index]
        holder.pop(str(path[-1]), None)
    return found, words if validation == "Warn" else []


def _unknown_metadata(pod: Node, found: Mapping[str, Any]) -> list[tuple[str | int, ...]]:
    meta = pod.field("metadata")
    assert meta is not None
    return [("metadata", key) for key in found if meta.field(key) is None]


def _sort(
    kind: Kind, error: ValidationError, unknown: list[tuple[str | int, ...]], problems: list[FieldProblem]
) -> None:
    path, against = tuple(error.absolute_path), error.validator_value
    if error.validator == "additionalProperties" and against is False:
        known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
        unknown += [(*path, key) for key in _keys(error.instance) if key not in known]
    elif error.validator == "required":
        lacking = [str(key) for key in _keys(against) if key not in _keys(error.instance)]
        problems += [each for each in (required(dotted((*path, key))) for key in lacking) if each not in problems]
    elif kind.custom:
        problems.append(wrong(dotted(path), error.instance, f"{dotted(path)} in body: {error.message}"))
    elif error.validator in ("type", "oneOf"):
        given = _JSON.get(type(error.instance), "null")
        wanted: Any = against if error.validator == "type" else "quantity or string"
        name = wanted[0] if isinstance(wanted, list) else str(wanted)
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot unmarshal '
            f"{given} into Go struct field .{dotted(path)} of type {_GO.get(name, name)}"
        )
    else:
        problems.append(wrong(dotted(path), error.instance, error.message))


def _keys(value: Any) -> list[str]:
    """Of an object its keys, of a list its elements."""
    return list(value) if isinstance(value, Mapping | list) else []
