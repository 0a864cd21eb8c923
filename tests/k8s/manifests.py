"""The documents of k8s/, and the questions that the tests ask of them. It knows no cluster: plain data in, data out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "k8s"
APPLIED = (".yaml", ".yml", ".json")
"""The endings that `kubectl apply -f FOLDER` takes; every other file is passed over."""
CLUSTER_SCOPED = ("Namespace",)

Document = dict[str, Any]


class _StrictLoader(yaml.SafeLoader):
    """A key that stands twice is an error, as it is for the API server."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse(text: str) -> list[Document]:
    """The documents of a file."""
    return [document for document in yaml.load_all(text, _StrictLoader) if document is not None]


@cache
def load_all() -> list[Document]:
    """Every document that `kubectl apply -f k8s/` sends, in its order. Shared: copy one before changing it."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in APPLIED)
    return [document for path in files for document in parse(path.read_text(encoding="utf-8"))]


def of_kind(*kinds: str) -> list[Document]:
    return [document for document in load_all() if document["kind"] in kinds]


def name(document: Document) -> str:
    """`Kind namespace/name`, for messages and test ids."""
    meta = document["metadata"]
    return f"{document['kind']} {meta.get('namespace', '')}/{meta['name']}"


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects something with these labels. An empty selector selects everything."""
    selector = selector or {}
    assert set(selector) <= {"matchLabels"}, "only matchLabels is understood here"
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of pod that k8s/ makes."""

    owner: Document
    namespace: str
    template: Document

    @property
    def name(self) -> str:
        return str(self.owner["metadata"]["name"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def spec(self) -> Document:
        return dict(self.template["spec"])

    @property
    def container(self) -> Document:
        containers = [*self.spec["containers"], *self.spec.get("initContainers", ())]
        assert len(containers) == 1, f"{name(self.owner)}: one container a pod is what the tests know"
        return dict(containers[0])

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}

    @property
    def env(self) -> dict[str, str]:
        """Literal values; what Kubernetes fills in itself stands as `$(NAME)`."""
        return {item["name"]: item.get("value", f"$({item['name']})") for item in self.container.get("env", ())}

    def variables(self, prefix: str) -> dict[str, str]:
        return {key: value for key, value in self.env.items() if key.startswith(prefix + "_")}


def workloads() -> list[Workload]:
    return list(_workloads())


def _workloads() -> Iterator[Workload]:
    for document in load_all():
        spec = document.get("spec", {})
        if document["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            yield Workload(document, document["metadata"]["namespace"], spec["template"])


def workload(wanted: str) -> Workload:
    return next(each for each in workloads() if each.name == wanted)
