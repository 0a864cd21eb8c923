"""The environment of a container, in the order that Kubernetes gives it: envFrom first, then env, which wins. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from tests.k8s.pods.objects import Document, Objects

__all__ = ["environment", "expand"]

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z0-9_.-]+)\)")


def environment(container: Document, namespace: str, objects: Objects, fields: Mapping[str, str]) -> dict[str, str]:
    """`fields` has what `fieldRef` may name. ValueError for what is referred to and is not there."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if key in source:
                reference = source[key]
                data = _data(objects, kind, namespace, reference["name"], optional=reference.get("optional", False))
                found |= {prefix + name: value for name, value in (data or {}).items()}
    for variable in container.get("env") or ():
        if "valueFrom" in variable:
            value = _value(variable["valueFrom"], namespace, objects, fields)
            if value is None:
                continue
        else:
            value = expand(variable.get("value", ""), found)
        found[variable["name"]] = value
    return found


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` of what stands before; what is unknown stays as it is, and `$$` is a `$`."""
    return _REFERENCE.sub(lambda m: "$" if m[1] is None else known.get(m[1], m[0]), text)


def _value(source: Document, namespace: str, objects: Objects, fields: Mapping[str, str]) -> str | None:
    if "fieldRef" in source:
        path = source["fieldRef"]["fieldPath"]
        if path not in fields:
            raise ValueError(f"fieldRef {path} is none of {', '.join(fields)}")
        return fields[path]
    for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if key in source:
            reference = source[key]
            optional = reference.get("optional", False)
            data = _data(objects, kind, namespace, reference["name"], optional=optional)
            if data is not None and reference["key"] in data:
                return data[reference["key"]]
            if optional:
                return None
            raise ValueError(f"{kind} {namespace}/{reference['name']} has no key {reference['key']}")
    raise ValueError(f"valueFrom has {', '.join(source)}, which is not understood here")


def _data(objects: Objects, kind: str, namespace: str, name: str, *, optional: bool) -> dict[str, str] | None:
    found = objects.find(kind, namespace, name)
    if found is None:
        if optional:
            return None
        raise ValueError(f"{kind} {namespace}/{name} does not exist")
    plain = {key: str(value) for key, value in (found.get("stringData") or {}).items()}
    data = found.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value).decode() for key, value in data.items()} | plain
    return {key: str(value) for key, value in data.items()}
