"""Names, labels and what else has a form of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.k8s.apiserver.problem import FieldProblem, required, wrong

__all__ = ["dns_label", "dns_subdomain", "labels", "metadata"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PATH_SEGMENT = re.compile(r"(?!\.\.?$)[^/%]+")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_WORD = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_MAX_ANNOTATIONS = 256 * 1024
_LABELLED = ("Namespace", "Pod")
_RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def dns_label(path: str, value: str) -> Iterator[FieldProblem]:
    """RFC 1123, up to 63 characters."""
    if len(value) > 63:
        yield wrong(path, value, "must be no more than 63 characters")
    if not _LABEL.fullmatch(value):
        yield wrong(
            path,
            value,
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
            "end with an alphanumeric character (e.g. 'my-name', or '123-abc')",
        )


def dns_subdomain(path: str, value: str) -> Iterator[FieldProblem]:
    """RFC 1123, up to 253 characters."""
    if len(value) > 253:
        yield wrong(path, value, "must be no more than 253 characters")
    if not _SUBDOMAIN.fullmatch(value):
        yield wrong(
            path,
            value,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com')",
        )


def _name(kind: str, name: str) -> Iterator[FieldProblem]:
    path = "metadata.name"
    if kind == "Service":
        if len(name) > 63 or not _SERVICE.fullmatch(name):
            yield wrong(
                path, name, "a DNS-1035 label must start with a letter and hold lower case letters, digits, '-'"
            )
    elif kind in _RIGHTS:
        if not _PATH_SEGMENT.fullmatch(name):
            yield wrong(path, name, "may not be '.' or '..', nor contain '/' or '%'")
    elif kind in _LABELLED and kind != "Pod":
        yield from dns_label(path, name)
    else:
        yield from dns_subdomain(path, name)
        if kind == "CronJob" and len(name) > 52:
            yield wrong(path, name, "must be no more than 52 characters")


def labels(path: str, found: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Keys with an optional prefix, values of up to 63 characters."""
    for key, value in found.items():
        prefix, slash, word = key.rpartition("/")
        if not word or len(word) > 63 or not _WORD.fullmatch(word) or (slash and not _SUBDOMAIN.fullmatch(prefix)):
            yield wrong(path, key, "name part must consist of alphanumeric characters, '-', '_' or '.'")
        if len(str(value)) > 63 or not _WORD.fullmatch(str(value)):
            yield wrong(path, value, "a valid label must be an empty string or consist of alphanumeric characters")


def metadata(kind: str, found: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """All of `metadata`."""
    if not found.get("name"):
        yield required("metadata.name", "name or generateName is required")
    else:
        yield from _name(kind, found["name"])
    yield from labels("metadata.labels", found.get("labels", {}))
    annotations = found.get("annotations", {})
    if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        yield FieldProblem("metadata.annotations", "Too long", f"may not be more than {_MAX_ANNOTATIONS} bytes")
