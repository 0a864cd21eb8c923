"""Reads a tool's schema as files have it: OpenAI's function schema, checked key by key.

An error names the key by its path and says what is allowed; nothing is dropped, and a keyword that JSON schema does not
have is an error, because a model would be shown it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from fairbox.errors import ConfigError
from rollout.tools.schema import TYPES, ParameterSchema, ToolSchema

_SAID = ("title", "description", "default", "examples", "deprecated")
_KEYWORDS = (*_SAID, *(word for word in Draft202012Validator.VALIDATORS if not word.startswith("$")))
_NESTED = ("items", "additionalProperties", "not", "propertyNames")
"""Keywords whose value is a schema."""


def read_schema(tree: Any, path: str) -> ToolSchema:
    """The schema that stands at `path`: `{type: function, function: {name, description, parameters}}`."""
    check_keys(tree, path, ("type", "function"), required=("type", "function"))
    if tree["type"] != "function":
        raise ConfigError(f"{path}.type is {tree['type']!r}, must be 'function'")
    function, path = tree["function"], f"{path}.function"
    check_keys(function, path, ("name", "description", "parameters", "strict"), required=("name", "description"))
    for key in ("name", "description"):
        _text(function[key], f"{path}.{key}")
    if not function["name"]:
        raise ConfigError(f"{path}.name is empty, must be the name that the model calls")
    if function.get("strict"):
        raise ConfigError(f"{path}.strict is {function['strict']!r}, but nothing enforces it; leave it out")
    parameters, path = function.get("parameters"), f"{path}.parameters"
    if parameters is None:
        return ToolSchema(function["name"], function["description"])
    check_keys(parameters, path, ("type", "properties", "required"), required=("type",))
    if parameters["type"] != "object":
        raise ConfigError(f"{path}.type is {parameters['type']!r}, must be 'object'")
    properties = parameters.get("properties") or {}
    _mapping(properties, f"{path}.properties")
    found = {name: _parameter(tree, f"{path}.properties.{name}") for name, tree in properties.items()}
    required = parameters.get("required") or []
    if not isinstance(required, list) or [name for name in required if name not in found]:
        raise ConfigError(f"{path}.required is {required!r}, must be a list of names of properties")
    return ToolSchema(function["name"], function["description"], found, tuple(required))


def check_reads(schema: ToolSchema, reads: ToolSchema, path: str) -> None:
    """ConfigError unless a tool that reads the arguments of `reads` gets them from calls that fit `schema`."""
    path = f"{path}.function.parameters"
    for name, wanted in reads.parameters.items():
        given = schema.parameters.get(name)
        if given is None and name in reads.required:
            raise ConfigError(f"{path}.properties lacks {name}, which the tool needs")
        if given is not None and given.type != wanted.type:
            raise ConfigError(f"{path}.properties.{name}.type is {given.type!r}, but the tool takes {wanted.type!r}")
    missing = [name for name in reads.required if name not in schema.required]
    if missing:
        raise ConfigError(f"{path}.required lacks {', '.join(missing)}, which the tool needs")
    unread = [name for name in schema.required if name not in reads.parameters]
    if unread:
        raise ConfigError(f"{path}.required has {', '.join(unread)}, which the tool does not read")


def check_keys(tree: Any, path: str, known: Collection[str], *, required: Collection[str] = ()) -> None:
    """ConfigError unless `tree` is a mapping that has the `required` keys, and none but `known` ones."""
    _mapping(tree, path)
    for key in tree:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{path}.{key} is not a key; {hint}")
    for key in required:
        if key not in tree:
            raise ConfigError(f"{path}.{key} is missing")


def _parameter(tree: Any, path: str) -> ParameterSchema:
    _check_keywords(tree, path)
    if tree.get("type") not in TYPES:
        raise ConfigError(f"{path}.type is {tree.get('type')!r}, must be one of {', '.join(TYPES)}")
    # verl's examples have `enum: null`.
    said = {key: value for key, value in tree.items() if value is not None or key not in ("enum", "description")}
    try:
        Draft202012Validator.check_schema(said)
    except SchemaError as error:
        raise ConfigError(f"{path}{error.json_path.removeprefix('$')}: {error.message}") from None
    extra = {key: value for key, value in said.items() if key not in ("type", "description", "enum")}
    enum = said.get("enum")
    return ParameterSchema(said["type"], said.get("description", ""), None if enum is None else tuple(enum), extra)


def _check_keywords(tree: Any, path: str) -> None:
    check_keys(tree, path, _KEYWORDS)
    for key in _NESTED:
        if isinstance(tree.get(key), Mapping):
            _check_keywords(tree[key], f"{path}.{key}")
    properties = tree.get("properties")
    if properties is not None:
        _mapping(properties, f"{path}.properties")
        for name, nested in properties.items():
            _check_keywords(nested, f"{path}.properties.{name}")


def _mapping(value: Any, path: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} is {value!r}, must be a mapping")


def _text(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{path} is {value!r}, must be a text")
