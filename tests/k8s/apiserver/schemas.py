"""The schemas of one Kubernetes version: what fields a kind has, and how lists among them are merged.

They come from the package kubernetes-validate, which carries the OpenAPI definitions of every version with their
`x-kubernetes-*` extensions; a custom resource brings its own in its CRD.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema.validators import Draft202012Validator
from referencing import Registry, Resource

from tests.k8s.apiserver.kinds import Kind

__all__ = ["Node", "Schemas"]

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_REFERENCE = "#/$defs/"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The schema of one field. `None` in its place: anything, merged as plain JSON is."""

    schemas: Schemas
    data: Mapping[str, Any]

    def field(self, name: str) -> Node | None:
        """That of a field of this object, or of a value of this map."""
        properties = self.data.get("properties", {})
        found = properties.get(name) if name in properties else self.data.get("additionalProperties")
        return self.schemas.node(found) if isinstance(found, Mapping) else None

    @property
    def items(self) -> Node | None:
        """That of the elements of this list."""
        found = self.data.get("items")
        return self.schemas.node(found) if isinstance(found, Mapping) else None

    @property
    def merge_key(self) -> str | None:
        """Strategic merge patch: the field by which elements are told apart. None: the list is one value."""
        return self.data.get("x-kubernetes-patch-merge-key") if "merge" in self.strategies else None

    @property
    def strategies(self) -> tuple[str, ...]:
        """Strategic merge patch: of `merge`, `replace` and `retainKeys`."""
        return tuple(str(self.data.get("x-kubernetes-patch-strategy", "")).split(","))

    @property
    def list_keys(self) -> tuple[str, ...] | None:
        """Server-side apply: the fields by which elements are told apart; empty: elements are values of a set. None:
        the list is one value."""
        kind = self.data.get("x-kubernetes-list-type")
        if kind == "map":
            return tuple(self.data["x-kubernetes-list-map-keys"])
        return () if kind == "set" else None

    @property
    def atomic(self) -> bool:
        """Server-side apply: the object or list is one value."""
        return self.data.get("x-kubernetes-map-type") == "atomic" or ("items" in self.data and self.list_keys is None)

    @property
    def quantity(self) -> bool:
        return bool(self.data.get("quantity"))

    def default(self, name: str) -> Any:
        """Of a key of a list: what it is where it isn't given."""
        return "TCP" if name == "protocol" else None


class Schemas:
    """Those of one version of Kubernetes, as `1.36`. ValueError where the package does not have it."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._definitions, self._names, self._registry, self._uri = _load(version)

    def of(self, kind: Kind) -> Node | None:
        """That of a kind; None: the version does not have the kind."""
        if kind.schema is not None:
            return self.node(kind.schema)
        name = self._names.get((kind.group, kind.version, kind.kind))
        return self.node(self._definitions[name]) if name else None

    def validator(self, kind: Kind) -> Draft202012Validator | None:
        """Says everything that is wrong with an object of a built-in kind."""
        if kind.schema is not None:
            return Draft202012Validator(strict(kind.schema, top=True))
        name = self._names.get((kind.group, kind.version, kind.kind))
        if name is None:
            return None
        return Draft202012Validator({"$ref": f"{self._uri}{_REFERENCE}{name}"}, registry=self._registry)

    def node(self, data: Mapping[str, Any]) -> Node:
        """A schema with its reference followed; what stands beside the reference is kept."""
        reference = data.get("$ref")
        if reference is None:
            return Node(self, data)
        name = str(reference).rpartition(_REFERENCE)[2]
        merged = {**self._definitions[name], **data}
        if name == _QUANTITY:
            merged["quantity"] = True
        return Node(self, merged)


def strict(schema: Mapping[str, Any], *, top: bool = False) -> dict[str, Any]:
    """A CRD's schema as JSON Schema that also refuses unknown fields, as strict validation does."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        return {**made, "type": ["integer", "string"]}
    for key in ("properties", "patternProperties"):
        if key in schema:
            made[key] = {name: strict(each) for name, each in schema[key].items()}
    if top:
        anything: dict[str, Any] = {}
        made["properties"] = {"apiVersion": anything, "kind": anything, "metadata": anything} | made.get(
            "properties", {}
        )
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            made[key] = strict(schema[key])
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in made and not open_ended:
        made["additionalProperties"] = False
    if made.pop("nullable", False) and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


@cache
def _load(version: str) -> tuple[dict[str, Any], dict[tuple[str, str, str], str], Any, str]:
    place = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict" / "_definitions.json"
    if not place.is_file():
        raise ValueError(f"version is {version!r}, and kubernetes-validate has no schemas of it")
    document = json.loads(place.read_text(encoding="utf-8"))
    definitions: dict[str, Any] = document["$defs"]
    names = {
        (each["group"], each["version"], each["kind"]): name
        for name, definition in definitions.items()
        for each in definition.get("x-kubernetes-group-version-kind", ())
        if len(definition["x-kubernetes-group-version-kind"]) == 1
    }
    uri = str(document["$id"])
    registry: Any = Registry().with_resource(uri, Resource.from_contents(document))
    return definitions, names, registry, uri
