"""Custom resources against their projects' own definitions, in a folder that FAIRBOX_CRDS names: `*.yaml` of them.

Kueue and KubeRay have them in `config/components/crd/bases` and `ray-operator/config/crd/bases` of their repositories.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.k8s.manifests import COMPONENTS, OVERLAYS, Document, kustomized, name

Schemas = dict[tuple[str, str], dict[str, Any]]


def _closed(schema: Any) -> Any:
    """The same, where a field that it does not know is wrong, and a number may stand where a quantity may."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    named = found.get("type") == "object" and isinstance(found.get("properties"), dict)
    if named and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    return found


@pytest.fixture(scope="module")
def schemas() -> Schemas:
    """(apiVersion, kind) -> what may be in one."""
    folder = os.environ.get("FAIRBOX_CRDS", "")
    if not folder:
        pytest.skip("FAIRBOX_CRDS names no folder with definitions of custom resources")
    found: Schemas = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            spec = document["spec"]
            for version in spec["versions"]:
                schema = _closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {}
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _wrong(schemas: Schemas, document: Document) -> list[str]:
    validator = Draft202012Validator(schemas[document["apiVersion"], document["kind"]])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_they_pass_the_definitions_of_their_projects(schemas: Schemas) -> None:
    found = {
        name(document): document
        for folder in (*COMPONENTS, *OVERLAYS)
        for document in kustomized(folder)
        if (document["apiVersion"], document["kind"]) in schemas
    }
    assert found
    for document in found.values():
        assert _wrong(schemas, document) == []
        slip = document | {"spec": document.get("spec", {}) | {"slip": 1}}
        assert "slip" in "".join(_wrong(schemas, slip))
