"""What a request is about: the path of its URL, taken apart."""

from __future__ import annotations

from dataclasses import dataclass

from tests.k8s.apiserver.kinds import Kind, Kinds
from tests.k8s.apiserver.problem import Problem

__all__ = ["Route", "resource_route"]


@dataclass(frozen=True, slots=True)
class Route:
    """Objects of a kind, or one of them, or a part of one."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.kind.group, self.kind.plural, self.namespace, self.name)


def resource_route(kinds: Kinds, path: str) -> Route | None:
    """The route of a path below /api/v1 or /apis/GROUP/VERSION; None: it is one of the documents of discovery.

    404 for what is not served.
    """
    words = [word for word in path.split("/") if word]
    if words[:1] == ["api"]:
        group, rest = "", words[1:]
    elif words[:1] == ["apis"]:
        group, rest = (words[1] if len(words) > 1 else ""), words[2:]
    else:
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    if len(rest) < 2:
        return None
    version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = kinds.find(group, version, rest[0])
    name, subresource = [*rest[1:], "", ""][:2]
    wrong_scope = kind is not None and bool(namespace) and not kind.namespaced
    if kind is None or len(rest) > 3 or wrong_scope or (subresource and subresource not in kind.subresources):
        raise Problem(404, "NotFound", "the server could not find the requested resource")
    return Route(kind, namespace, name, subresource)
