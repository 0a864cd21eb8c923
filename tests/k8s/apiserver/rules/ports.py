"""Ports and their names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.k8s.apiserver.problem import FieldProblem, wrong

__all__ = ["port_name", "port_number"]

_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)")
_MAX_NAME = 15
_MAX_PORT = 65535


def port_number(path: str, port: int) -> Iterator[FieldProblem]:
    if not 0 < port <= _MAX_PORT:
        yield wrong(path, port, f"must be between 1 and {_MAX_PORT}, inclusive")


def port_name(path: str, name: str) -> Iterator[FieldProblem]:
    """An IANA service name, as in `grpc`."""
    if len(name) > _MAX_NAME:
        yield wrong(path, name, f"must be no more than {_MAX_NAME} characters")
    elif not _NAME.fullmatch(name):
        yield wrong(path, name, "must contain only alphanumeric characters (a-z, 0-9), and hyphens, and one letter")
